"""Ways to decode: what is found by trying, and what only looks like a cache."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.cache import Cache
from attnlab.audit.repro.prelude import kept_in
from attnlab.audit.subject.adapters import subject_for


class Attention(nn.Module):
    """Two heads; subclasses say where keys and values are kept."""

    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, x, before=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        if before is not None:
            k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
        t, n = q.shape[2], k.shape[2]
        seen = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class ByTuple(Attention):
    def forward(self, x, layer_past=None, use_cache=False):
        y, kept = self.attend(x, layer_past)
        return (y, None, kept) if use_cache else y


class ByName(Attention):
    def forward(self, x, past_key_values=None):
        y, kept = self.attend(x, past_key_values)
        return SimpleNamespace(last_hidden_state=y, past_key_values=kept)


class ByEntry(Attention):
    def forward(self, x, past=None):
        y, kept = self.attend(x, past)
        return {"out": y, "present": kept}


class InDictionary(Attention):
    def forward(self, x, kv_cache=None):
        y, kept = self.attend(x, kv_cache.get("kv") if kv_cache else None)
        if kv_cache is not None:
            kv_cache["kv"] = kept
        return y


class Kept:
    def __init__(self):
        self.kv = None


class InObject(Attention):
    def forward(self, x, cache: Kept | None = None):
        y, kept = self.attend(x, cache.kv if cache else None)
        if cache is not None:
            cache.kv = kept
        return y


class Inside(Attention):
    """Set up for a number of rows and positions, and told where a piece begins."""

    def setup_caches(self, max_batch_size, max_seq_length):
        self.table = torch.zeros(2, max_batch_size, 2, max_seq_length, 8)

    def forward(self, x, input_pos=None):
        if input_pos is None or not hasattr(self, "table"):
            return self.attend(x)[0]
        start = int(input_pos[0])
        self.table = self.table.to(x)
        y, (k, v) = self.attend(x, self.table[:, :, :, :start])
        self.table[:, :, :, : start + x.shape[1]] = torch.stack((k, v))
        return y


class Buffers(Attention):
    def forward(self, x, start_pos=0):
        before = self.kept if start_pos else None
        y, self.kept = self.attend(x, before)
        return y


class Stepped(Attention):
    """By a method of its own, one position at a time."""

    def forward(self, x):
        return self.attend(x)[0]

    def decode_step(self, x, past=None):
        return self.attend(x, past)


class SteppedInside(Stepped):
    kept = None

    def reset_state(self):
        self.kept = None

    def decode_step(self, x):
        y, self.kept = self.attend(x, self.kept)
        return y


class LastOnly(nn.Module):
    """Without targets it gives the last outputs, and remembers whatever it is given."""

    def __init__(self, vocab_size=19, dim=16):
        super().__init__()
        self.vocab_size, self.inner = vocab_size, Attention(dim)
        self.table = nn.Embedding(vocab_size, dim)

    def attend(self, x, before):
        return self.inner.attend(x, before)

    def forward(self, idx, targets=None, cache=None):
        y, kept = self.attend(self.table(idx), cache.get("kv") if cache else None)
        if cache is not None:
            cache["kv"] = kept
        return (y if targets is not None else y[:, -1:]) @ self.table.weight.T


def subject_of(module):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return subject_for(module(), {}, "code")


def found(module, **declared):
    return Cache().examine(Probe(subject_of(module), Contract(cache=True, **declared)))


WAYS = (
    *(ByTuple, ByName, ByEntry, InDictionary, InObject, Inside, Buffers),
    *(Stepped, SteppedInside, LastOnly),
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_usual_way_is_found_and_right_code_passes(way):
    finding = found(way)
    assert finding.verdict == "pass", finding.detail
    assert "refused" not in finding.detail


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_in_every_way_keys_that_are_spoilt_are_found(way):
    class Spoilt(way):
        def attend(self, x, before=None):
            wrong = None if before is None else (before[0], 1.1 * before[1])
            return super().attend(x, wrong)

    assert found(Spoilt).verdict == "fail"


def test_a_parameter_that_is_ignored_is_no_cache():
    class Ignores(Attention):
        def forward(self, x, cache=None, use_cache=False, start_pos=0):
            return self.attend(x)[0]

    assert not subject_of(Ignores).caches
    assert found(Ignores).verdict == "cannot tell"


def test_pieces_that_are_refused_are_said_and_the_others_count():
    class Single(Attention):
        def forward(self, x, past=None, use_cache=False):
            if past is not None and x.shape[1] > 1:
                raise NotImplementedError("one at a time")
            return self.attend(x, past)

    finding = found(Single)
    assert finding.verdict == "pass" and "one at a time" in finding.detail


def test_two_texts_do_not_share_what_a_module_keeps():
    subject = subject_of(Buffers)
    x, other = subject.draw(2, 4, 0), subject.draw(2, 4, 1)
    with torch.no_grad():
        alone = subject.step(x, subject.new_cache())
        first, second = subject.new_cache(), subject.new_cache()
        subject.step(x[:, :2], first)
        subject.step(other[:, :2], second)
        later = subject.step(x[:, 2:], first)
    torch.testing.assert_close(later, alone[:, 2:])


@pytest.mark.parametrize("way", [SteppedInside, Buffers])
def test_what_a_module_keeps_of_one_text_is_found_in_the_second(way):
    class Keeps(way):
        kept = None

        def reset_state(self):
            pass

        def forward(self, x, start_pos=None):
            if start_pos is None:
                return self.attend(x)[0]
            y, self.kept = self.attend(x, self.kept)
            return y

    class Told(Keeps):
        reset_state = None

    for code in (Keeps, Told):
        finding = found(code)
        assert finding.verdict == "fail" and finding.aspect == "a second text", finding.detail


def test_where_nobody_says_how_a_module_forgets_a_text_it_cannot_be_told():
    class Never(SteppedInside):
        reset_state = None

    class Shuffles(SteppedInside):
        """Another thing that is called reset."""

        reset_state = None

        def reset(self):
            nn.init.normal_(self.qkv.weight)

    for code in (Never, Shuffles):
        finding = found(code)
        assert finding.verdict == "cannot tell", finding.detail
        assert "how it is emptied for a second text" in finding.detail


def test_a_reset_of_the_parts_is_called_where_the_whole_has_none():
    class Model(nn.Module):
        def __init__(self, dim=16, wrong=False):
            super().__init__()
            self.dim, self.wrong = dim, wrong
            self.parts = nn.ModuleList([SteppedInside(dim), SteppedInside(dim)])

        def forward(self, x):
            for part in self.parts:
                x = x + part(x)
            return x

        def step(self, x):
            for part in self.parts:
                x = x + part.decode_step(x)
            return x

    class Half(Model):
        def reset_caches(self):
            self.parts[0].reset_state()

    assert found(Model).verdict == "pass"
    assert found(Half).verdict == "fail"


def test_weights_beside_the_outputs_are_not_taken_for_a_cache():
    y, weights, kept = torch.zeros(1), torch.ones(2), (torch.zeros(3), torch.zeros(3))
    assert kept_in((y, weights, kept), "past") is kept
    assert kept_in((y, weights, weights), "past") is None
    assert kept_in({"y": y, "present": kept}, "past") is kept
    assert kept_in((kept, y), "past") is kept


def test_a_position_is_given_with_or_without_an_axis_of_time_whichever_is_right():
    class Flat(Attention):
        """Takes [b, c]; with [b, 1, c] it adds up values instead of weighing them."""

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def step(self, x, state=None):
            q, k, v = self.qkv(x).chunk(3, -1)
            k, v = k[:, None], v[:, None]
            if state is not None:
                k, v = torch.cat((state[0], k), 1), torch.cat((state[1], v), 1)
            weights = ((q[:, None] * k).sum(-1) / self.dim**0.5).softmax(-1)
            return (weights[..., None] * v).sum(1), (k, v)

    assert subject_of(Flat).decoder.flat
    assert found(Flat).verdict == "pass"


def test_a_cache_that_needs_what_nobody_knows_is_not_called_wrong():
    class Needs(InDictionary):
        def new_cache(self, colour):
            return {"colour": colour}

        def forward(self, x, cache=None):
            return super().forward(x, None if cache is None else cache["colour"])

    assert found(Needs).verdict == "cannot tell"


class Placed(nn.Module):
    """Positions may be told; left out, they are counted, or begin at 0 with every call."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def new_cache(self):
        return {"total": 0.0, "seen": 0}

    def forward(self, x, cache=None, position_ids=None):
        begin = cache["seen"] if cache is not None and self.counts else 0
        if position_ids is None:
            position_ids = torch.arange(begin, begin + x.shape[1])
        summed = (x * (1 + position_ids[..., None])).cumsum(1)
        if cache is not None:
            summed = summed + cache["total"]
            cache.update(total=summed[:, -1:], seen=cache["seen"] + x.shape[1])
        return summed


@pytest.mark.parametrize("counts", [True, False])
def test_that_positions_must_be_told_is_said(counts):
    decoder = subject_for(Placed(counts), {"width": 4}, "placed").decoder
    assert ("and wrong without" in str(decoder)) is not counts
