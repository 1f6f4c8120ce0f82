# ruff: noqa: E501  (lines of code are quoted as they are)
"""Mutants that are no bugs, each looked at by hand: why it is as right as its original.

reason → mutants, as `Mutant.key` names them: original, function, and what the line reads. A mutant
that the audit does not find counts as missed unless it is here; one that is here and that the audit
fails counts as a false alarm.
"""

REASONS: dict[str, tuple[str, ...]] = {
    "a sum over the tokens instead of their mean: one factor for a whole batch, either is a loss": (
        "Accumulating, accumulate: loss = F.cross_entropy(guesses, targets, reduction='sum')",
    ),
    "the sign of a learned term: a linear layer or a table takes it up": (
        "Accumulating, forward: return self.head(x - out[:, 0])",
        "Language, forward: return x - self.down(F.gelu(self.up(self.after(x))))",
        "Language, forward: x = self.embed(input_ids) - self.place(places)",
        "Language, forward: x = x - self.attend(self.norm(x), padding)",
        "our transformer, ALiBi, window, forward: return between - self.drop(self.forwarded_norm(inner))",
        "our transformer, ALiBi, window, forward: between = x - attended",
    ),
    "two linear layers alike change their names: queries for keys, nothing turns or norms one of them only": (
        "Accumulating, forward: out = F.scaled_dot_product_attention(k, q, v, is_causal=True)",
        "AlibiAttention, forward: scores = k @ q.mT / math.sqrt(self.head_width) + bias",
        "BackwardRotary, forward: y = F.scaled_dot_product_attention(self._turn(k), self._turn(q), v, is_causal=True)",
        "CausalAttention, forward: out = F.scaled_dot_product_attention(k, q, v, is_causal=True)",
        "Language, attend: out = F.scaled_dot_product_attention(k, q, v, attn_mask=seen, dropout_p=drop)",
        "MaskedSdpa, forward: out = F.scaled_dot_product_attention(k, q, v, attn_mask=seen)",
        "PackedAttention, forward: out = F.scaled_dot_product_attention(k, q, v, attn_mask=seen)",
        "QuietPadding, forward: scores = (k @ q.mT).float() / q.shape[-1] ** 0.5",
        "SinkAttention, forward: scores = (k @ q.mT / q.shape[-1] ** 0.5).masked_fill(~_past(x.shape[1]), -math.inf)",
        "WindowAttention, forward: out = F.scaled_dot_product_attention(k, q, v, attn_mask=seen)",
    ),
    "two linear layers alike change their names: keys for values": (
        "Accumulating, forward: out = F.scaled_dot_product_attention(q, v, k, is_causal=True)",
        "CausalAttention, forward: out = F.scaled_dot_product_attention(q, v, k, is_causal=True)",
        "Language, attend: out = F.scaled_dot_product_attention(q, v, k, attn_mask=seen, dropout_p=drop)",
        "MaskedSdpa, forward: out = F.scaled_dot_product_attention(q, v, k, attn_mask=seen)",
        "PackedAttention, forward: out = F.scaled_dot_product_attention(q, v, k, attn_mask=seen)",
        "RoomyCache, forward: out = F.scaled_dot_product_attention(q, v, k, attn_mask=seen)",
        "StaticCache, forward: y = F.scaled_dot_product_attention(q, v, k, attn_mask=seen)",
        "WindowAttention, forward: out = F.scaled_dot_product_attention(q, v, k, attn_mask=seen)",
    ),
    "positions are compared with each other only: one number on all of them changes nothing": (
        "AlibiAttention, forward: places = torch.arange(t) - 1",
        "MaskedSdpa, forward: places = torch.arange(t) - 1",
        "RingCache, forward: places = torch.arange(x.shape[1]) - 1",
        "WindowAttention, forward: places = torch.arange(x.shape[1]) - 1",
        "online_attention, online_attention: places = torch.arange(t) - 1",
    ),
    "another largest exponent of the slopes: a setting that some code has": (
        "AlibiAttention, forward: slopes = 2.0 ** (-4.0 * torch.arange(1, self.heads + 1) / self.heads)",
    ),
    "coordinates of queries and of keys change places alike: their product is the same": (
        "BackwardRotary, _turn: moved = torch.stack((a * sin + b * cos, a * cos - b * sin), dim=-1).flatten(-2)",
        "BackwardRotary, _turn: return torch.cat((x[..., half:], moved), dim=-1)",
        "GroupedRotary, rotate_half: return torch.cat((second * cos + first * sin, first * cos - second * sin), dim=-1)",
        "PairedRotary, rotate_pairs: turned = torch.stack((second * cos + first * sin, first * cos - second * sin), dim=-1)",
        "our transformer, rotary, rotate: out = torch.cat((new_second, new_first), dim=-1)",
    ),
    "rotations depend on differences of positions: these begin elsewhere, on both sides": (
        "BackwardRotary, _turn: angle = -(torch.arange(x.shape[2], dtype=torch.float64) - 1)[:, None] * speed",
        "GroupedRotary, forward: cos, sin = angles(torch.arange(t) - 1, self.head_width, self.base)",
        "GrowingCache, forward: cos, sin = angles(torch.arange(start + -1, stop + -1), self.head_width, 10000.0)",
        "GrowingCache, forward: cos, sin = angles(torch.arange(start + 1, stop + 1), self.head_width, 10000.0)",
        "PairedRotary, forward: cos, sin = angles(torch.arange(x.shape[1]) - 1, self.head_width, self.base)",
        "our transformer, rotary, rotation_of_span: table = self.rotation((torch.arange(longest, device=device) - 1)[None], dtype)",
    ),
    "rotations depend on differences of positions: turned backwards on both sides, as good as forwards": (
        "BackwardRotary, _turn: angle = -torch.arange(x.shape[2], dtype=torch.float64).flip(0)[:, None] * speed",
        "GroupedRotary, forward: cos, sin = angles(torch.arange(t).flip(0), self.head_width, self.base)",
        "PairedRotary, forward: cos, sin = angles(torch.arange(x.shape[1]).flip(0), self.head_width, self.base)",
    ),
    "queries of the token before, which some models want; the one that comes round meets a single key": (
        "GroupedRotary, forward: q, k = (rotate_half(q.roll(1, 2), cos, sin), rotate_half(k, cos, sin))",
        "PairedRotary, forward: q, k = (rotate_pairs(q.roll(1, 2), cos, sin), rotate_pairs(k, cos, sin))",
    ),
    "only queries that are padding see less, and outputs at padding are nobody's": (
        "Language, attend: seen = seen & ~padding[:, None, None, :]",
        "MaskedSdpa, forward: seen = seen & attention_mask[:, None, None, :].bool()",
        "WindowAttention, forward: seen = seen & ~key_padding_mask[:, None, None, :]",
    ),
    "of one position there is nothing to transpose: numbers lie in the same order": (
        "RingCache, step: return self.merge(out.reshape(out.transpose(1, 2).shape).flatten(2))",
        "LinearAttention, step: cache['state'] = cache['state'] + k.reshape(k.mT.shape) @ v",
        "LinearAttention, step: cache['total'] = cache['total'] + k.reshape(k.mT.shape)",
        "LinearAttention, step: return self.merge(out.reshape(out.transpose(1, 2).shape).flatten(2))",
    ),
    "another feature map of queries or keys, and none is declared": (
        "LinearAttention, project: return (F.elu(q) + 1, F.elu(k) - 1, v)",
        "LinearAttention, project: return (F.elu(q) - 1, F.elu(k) + 1, v)",
    ),
    "values are normed instead of keys; no scale is declared that would bind them": (
        "NormedAttention, forward: y = F.scaled_dot_product_attention(q, v, k, is_causal=True, scale=1.0, enable_gqa=True)",
    ),
    "numbers of texts grow along a row: before a query they are never larger than its own": (
        "PackedAttention, forward: seen = seen & (segment_ids[:, None, :, None] <= segment_ids[:, None, None, :])",
    ),
    "equality has no order": (
        "PackedAttention, forward: seen = seen & (segment_ids[:, None, None, :] == segment_ids[:, None, :, None])",
    ),
    "a count is never below 0": (
        "RingCache, step: if at <= 0:",
        "RoomyCache, forward: if start <= 0:",
    ),
    "a score of -10000 is nothing beside the sink's, which is about 0 however large inputs are": (
        "SinkAttention, forward: scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~_past(x.shape[1]), -10000.0)",
    ),
    "of the two names that there are only one is no larger than it": (
        "StaticCache, forward: k, v = (slots, v) if name <= 'k' else (k, slots)",
        "our transformer, rotary, rotate: if by.layout <= 'half-split':",
    ),
    "another mixture of a token and the one before it, by learned weights; none is declared": (
        "TokenShift, forward: mixed = x * self.mix + before * (1 + self.mix)",
        "TokenShift, forward: mixed = x * self.mix - before * (1 - self.mix)",
    ),
    "scores are kept within 50, so that -10000 gives a weight of exactly 0 too": (
        "capped_attention, capped_attention: return scores.masked_fill(~_past(q.shape[2]), -10000.0).softmax(-1) @ v",
    ),
    "no bias is given, so that the line is not reached": (
        "our reference, masked_softmax: mask = bias > -torch.inf",
        "our reference, masked_softmax: mask = mask",
        "our reference, masked_softmax: mask = mask & (bias > -10000.0)",
        "our reference, masked_softmax: mask = mask & (bias > 0.0)",
        "our reference, masked_softmax: mask = mask & (bias >= -torch.inf)",
        "our reference, masked_softmax: mask = mask | (bias > -torch.inf)",
        "our reference, masked_softmax: scores = scores - bias",
    ),
    "every query attends to its own key, so that no row is masked throughout": (
        "our reference, masked_softmax: return scores.softmax(-1)",
        "our reference, masked_softmax: scores = scores.masked_fill(~mask, -torch.inf)",
    ),
    "more is kept, moved or read than is needed; the window's mask hides it": (
        "our transformer, ALiBi, window, _longer_than_the_ring: self._grow(room, k, v, min(self._stop + 1, self.reach))",
        "our transformer, ALiBi, window, _longer_than_the_ring: self._grow(room, k, v, min(self._stop - 1, self.reach))",
        "our transformer, ALiBi, window, _to_the_front: buffer.narrow(axis, 0, kept).copy_(last.clone() if first <= kept else last)",
        "our transformer, ALiBi, window, append: if kept + new >= room:",
        "our transformer, ALiBi, window, append: if self._stop + new >= room:",
        "our transformer, ALiBi, window, append: room = 2 * (self.reach - 1)",
        "our transformer, ALiBi, window, append: start = 0",
    ),
    "numbers are counted by two: the last one is not reached either way": (
        "our transformer, ALiBi, window, alibi_slopes: between = [2.0 ** (-8 * (n + 1) / (2 * below)) for n in range(0, 2 * below - 1, 2)]",
    ),
    "the mask that is left out is made anew from the padding": (
        "our transformer, ALiBi, window, _request_of: return Request(q=q, k=held.k, v=held.v, causal=options.causal, window=self.window, chunk=self.chunk, prefix=options.prefix, segments=options.segments, soft_cap=self.soft_cap, sinks=self.sinks, bias=bias, key_padding=held.key_padding, padding_mask=None, dropout=self.drop.p if self.training else 0.0)",
        "our transformer, rotary, _request_of: return Request(q=q, k=held.k, v=held.v, causal=options.causal, window=self.window, chunk=self.chunk, prefix=options.prefix, segments=options.segments, soft_cap=self.soft_cap, sinks=self.sinks, bias=bias, key_padding=held.key_padding, padding_mask=None, dropout=self.drop.p if self.training else 0.0)",
    ),
    "the bias is no dense tensor in these models: the line is not reached": (
        "our transformer, ALiBi, window, _request_of: bias = bias[..., -held.k.shape[2] + -1:]",
        "our transformer, ALiBi, window, _request_of: bias = bias[..., -held.k.shape[2] + 1:]",
        "our transformer, rotary, _request_of: bias = bias[..., -held.k.shape[2] + -1:]",
        "our transformer, rotary, _request_of: bias = bias[..., -held.k.shape[2] + 1:]",
    ),
    "there are no sinks, so that the line is not reached": (
        "our reference, masked_softmax: return (lambda s: s.bfloat16().softmax(-1).to(s.dtype))(torch.cat((scores, sink), -1))[..., :-1].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).exp()[..., :-1].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(-1)[..., :-1].masked_fill(~blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(-1)[..., :-2].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(-1)[..., :0].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(-2)[..., :-1].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((scores, sink), -1).softmax(1)[..., :-1].masked_fill(blind, 0)",
        "our reference, masked_softmax: return torch.cat((sink, scores), -1).softmax(-1)[..., :-1].masked_fill(blind, 0)",
        "our reference, masked_softmax: sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-2], 1)",
        "our reference, masked_softmax: sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:0], 1)",
    ),
    "both are there, or neither is": (
        "our transformer, rotary, _read: if self._padding is None and self._mask is None:",
        "our transformer, rotary, _write: if k.requires_grad and v.requires_grad:",
    ),
    "a table or a cache that grows one position earlier or later holds the same": (
        "our transformer, rotary, _make_room: if self._k is None or needed >= self._k.shape[2]:",
        "our transformer, rotary, rotation_of_span: if table is None or table.cos.shape[2] <= stop:",
        "our transformer, rotary, rotation_of_span: longest = max(self.context + 1, stop if table is None else 2 * stop)",
        "our transformer, rotary, rotation_of_span: longest = max(self.context - 1, stop if table is None else 2 * stop)",
    ),
    "the branch of another setting, which this model does not have": (
        "our transformer, rotary, find_positions: axes = (cache.next[:, None] + positions + start)[:, None]",
        "our transformer, rotary, find_positions: axes = (cache.next[:, None] - positions - start)[:, None]",
        "our transformer, rotary, _split: compared, v = heads.split([queries - keys, values], dim=2)",
        "our transformer, rotary, rotate: out = torch.stack((new_second, new_first), dim=-1).flatten(-2)",
    ),
    "all coordinates turn, so that there is no rest of them": (
        "our transformer, rotary, rotate: return torch.cat((rest, out), dim=-1) if rest.shape[-1] else out",
        "our transformer, rotary, rotate: return torch.cat((rest, out.to(x.dtype)), dim=-1) if rest.shape[-1] else out.to(x.dtype)",
        "our transformer, rotary, rotate: turned, rest = (x[..., :2 * pairs + 1], x[..., 2 * pairs:])",
        "our transformer, rotary, rotate: turned, rest = (x[..., :2 * pairs], x[..., 2 * pairs + 1:])",
    ),
    "keys and values of padding are masked when they are read, whatever they hold": (
        "our transformer, rotary, _write: k, v = (k, v.masked_fill(hidden, 0))",
        "our transformer, rotary, _write: k, v = (k.masked_fill(hidden, 0), v)",
    ),
    "positions that are added; in this model none are": (
        "our transformer, rotary, find_positions: positions = torch.arange(start + -1, stop + -1, device=tokens.device)[None]",
        "our transformer, rotary, find_positions: positions = torch.arange(start + 1, stop + 1, device=tokens.device)[None]",
    ),
    "a row whose positions are all moved by its padding: rotations know distances alone": (
        "our transformer, rotary, find_positions: counted = positions is None or documents is None",
    ),
    "all keys are read, from 0 on": ("our transformer, rotary, _read: count = self._stop + start",),
    "this model has no window to be one off": (
        "our transformer, rotary, _request_of: return Request(q=q, k=held.k, v=held.v, causal=options.causal, window=self.window and self.window + 1, chunk=self.chunk, prefix=options.prefix, segments=options.segments, soft_cap=self.soft_cap, sinks=self.sinks, bias=bias, key_padding=held.key_padding, padding_mask=held.padding_mask, dropout=self.drop.p if self.training else 0.0)",
        "our transformer, rotary, _request_of: return Request(q=q, k=held.k, v=held.v, causal=options.causal, window=self.window and self.window - 1, chunk=self.chunk, prefix=options.prefix, segments=options.segments, soft_cap=self.soft_cap, sinks=self.sinks, bias=bias, key_padding=held.key_padding, padding_mask=held.padding_mask, dropout=self.drop.p if self.training else 0.0)",
    ),
    "more keys are taken in than the window shows, and masked": (
        "tiled_window_attention, tiled_window_attention: first = max(start - window + 1 - 1, 0)",
        "tiled_window_attention, tiled_window_attention: first = max(start - window - 1, 0)",
    ),
}
EQUIVALENT = {key: reason for reason, keys in REASONS.items() for key in keys}
