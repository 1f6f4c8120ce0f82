"""Our attention in models of `transformers`: importing this file registers it as "attnlab".

    import attnlab.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="attnlab")

A mask that is causal, a window, chunks, packed documents or padding is never made in memory
(`lazy_mask.py`); any other is taken as the library makes it. What our attention cannot compute is
refused by a ValueError that names the layer and what to use instead.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.extras import missing
from attnlab.integrations import own_eager
from attnlab.integrations.lazy_mask import LazyMask
from attnlab.integrations.mask_terms import Plan, plan_of
from attnlab.kernels import Segments, attention, segments_of_lengths

NAME = "attnlab"
# What a model may tell an attention that changes nothing here: masks have it already, or it is
# about outputs.
NO_MATTER = {
    *("sliding_window", "max_length_q", "max_length_k", "position_ids", "cache_position"),
    *("position_embeddings", "token_type_ids", "past_key_values", "use_cache", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "logits_to_keep"),
    *("num_items_in_batch", "deterministic"),
}
DIFFERENT = (
    "cu_seq_lens_q and position_ids tell different documents; pass one of them, or both of the "
    "same packed row"
)


def register() -> None:
    """Makes "attnlab" known to the library; a second time changes nothing."""
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(missing("transformers", "attnlab.integrations.transformers")) from error
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Callable[..., Tensor],
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **more: Any,
) -> Tensor | None:
    """What the library asks for before the layers run: the mask that its eager attention takes.

    It is a `LazyMask` if its function can be read. While a decoding step is being compiled, which
    the library tells by `allow_is_causal_skip`, it is the dense one, as it is for any other.
    """
    from transformers import masking_utils

    device = torch.device(device)

    def dense() -> Tensor | None:
        made: Tensor | None = masking_utils.eager_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # type: ignore[arg-type]
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            use_vmap=use_vmap,
            dtype=dtype,
            device=device,
            **more,
        )
        return made

    compiled = torch.compiler.is_compiling() or (q_length == 1 and not allow_is_causal_skip)
    padding_fits = attention_mask is None or attention_mask.dim() == 2
    if compiled or use_vmap or not padding_fits or 0 in (batch_size, q_length, kv_length):
        return dense()
    plan = plan_of(
        mask_function,
        rows=batch_size,
        queries=q_length,
        keys=kv_length,
        first_query=int(q_offset),
        first_key=kv_offset,
        padding=attention_mask,
        device=device,
    )
    if plan is None:
        return dense()
    local = local_size is not None and kv_length >= local_size
    if allow_is_bidirectional_skip and not (plan.causal or local or plan.padding is not None):
        return None  # as the library does it: there is nothing to mask

    def make() -> Tensor:
        made = dense()
        return torch.zeros(shape, dtype=dtype, device=device) if made is None else made

    shape = (batch_size, 1, q_length, kv_length)
    return LazyMask.of(plan, shape, dtype, device, make)


def attend(
    module: nn.Module,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k e"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " h"] | None = None,
    position_bias: Tensor | None = None,
    indices: Int[Tensor, "b q n"] | None = None,
    block_indices: Int[Tensor, "..."] | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "b q h e"], None]:
    """What the library calls in every layer."""
    _check(module, more)
    options = {
        "scaling": scaling,
        "softcap": softcap,
        "s_aux": s_aux,
        "position_bias": position_bias,
    }
    if not torch.compiler.is_compiling():
        passed = {name: one for name, one in options.items() if one is not None}
        reason = own_eager.disagreement(module, _compute, query, key, value, passed, more)
        if reason:
            raise _refusal(module, f"its eager attention is not the usual one: {reason}")
    if indices is not None:
        attention_mask = _only_chosen(attention_mask, indices, query, key)
    if block_indices is not None:
        attention_mask = _only_blocks(module, attention_mask, block_indices, query, key, more)
    if attention_mask is None and query.shape[2] > 1:
        _check_unmasked(module, is_causal)
    documents = None
    if cu_seq_lens_q is not None:
        documents = _documents(module, cu_seq_lens_q, cu_seq_lens_k, query, key)
        _refuse_other_documents(documents, more.get("position_ids"))
    out = _compute(
        query,
        key,
        value,
        attention_mask,
        dropout=dropout if module.training else 0.0,
        documents=documents,
        **options,  # type: ignore[arg-type]
    )
    return out, None


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    documents: Tensor | None = None,
) -> Float[Tensor, "b q h e"]:
    given: dict[str, Any] = {"causal": False}
    bias = position_bias
    plan: Plan | None = None
    if isinstance(mask, LazyMask):
        plan = mask.plan
        if plan is None:
            mask = mask.dense
    if plan is not None:
        assert mask is not None
        if mask.shape[3] != key.shape[2] or mask.shape[2] != query.shape[2]:
            raise ValueError(
                f"the mask is {list(mask.shape)} for {query.shape[2]} queries and {key.shape[2]} "
                "keys; the last two must be the same"
            )
        given = plan.options()
        if plan.keys < key.shape[2]:
            key, value = key[:, :, : plan.keys], value[:, :, : plan.keys]
            bias = bias[..., : plan.keys] if bias is not None and bias.shape[-1] > 1 else bias
    elif mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
        mask = mask[None] if mask.dim() == 3 else mask
        bias = mask if bias is None else bias + mask
    if documents is not None:
        given["segments"] = _with_documents(plan, documents)
    sinks = None if s_aux is None else s_aux.reshape(-1)
    out = attention(
        query,
        key,
        value,
        **given,
        scale=scaling,
        soft_cap=softcap,
        sinks=sinks,
        bias=bias,
        dropout=dropout,
    )
    return out.transpose(1, 2).contiguous()


def _with_documents(plan: Plan | None, documents: Int[Tensor, "1 q"]) -> Segments:
    """What a plan has already, and documents that must be those which it knows, if it knows any."""
    known = None if plan is None else plan.segments
    if plan is None or known is None:
        return Segments(documents, documents)
    if plan.documents is None:  # chunks; both numbers grow along a row, and so does their sum
        return Segments(known.queries + documents, known.keys + documents)
    if not torch.equal(plan.documents[:1].diff() != 0, documents.diff() != 0):
        raise ValueError(DIFFERENT)
    return known


def _refuse_other_documents(documents: Int[Tensor, "1 q"], positions: Any) -> None:
    """Also in models whose masks are made without positions. Those that go on tell nothing."""
    if not isinstance(positions, Tensor) or positions.shape != documents.shape:
        return
    begins = positions.diff() != 1
    told = not torch.equal(begins, torch.zeros_like(begins))
    if told and not torch.equal(begins, documents.diff() != 0):
        raise ValueError(DIFFERENT)


def _refusal(module: nn.Module, reason: str) -> ValueError:
    name = type(module).__name__
    return ValueError(f"{name}: {reason}; use attn_implementation='eager'")


def _check(module: nn.Module, more: dict[str, Any]) -> None:
    """What is not known may change what is computed, unless it is a switch."""
    for name, value in more.items():
        if name in NO_MATTER or value is None or isinstance(value, bool | int | str):
            continue
        raise _refusal(module, f"attnlab knows no {name!r}, which it passes to attention")


def _check_unmasked(module: nn.Module, is_causal: bool | None) -> None:
    """Without a mask the library's eager attention masks nothing, and its sdpa what is causal."""
    known = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if known is None or known:
        what = "is causal" if known else "does not say whether it is causal"
        raise _refusal(module, f"it {what} and passes no mask, which eager and sdpa read unlike")


def _only_chosen(
    mask: Tensor | None, indices: Int[Tensor, "b q n"], query: Tensor, key: Tensor
) -> Tensor:
    """The mask with all keys hidden that an indexer has not chosen (sparse attention)."""
    shape = (query.shape[0], query.shape[2], key.shape[2])
    hidden = torch.ones(shape, dtype=torch.bool, device=query.device)
    hidden = hidden.scatter(-1, indices.long(), False)[:, None]
    least = torch.finfo(query.dtype).min
    if mask is None:
        mask = torch.zeros(1, 1, 1, 1, dtype=query.dtype, device=query.device)
    elif isinstance(mask, LazyMask):
        mask = mask.dense
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, least)


def _only_blocks(
    module: nn.Module,
    mask: Tensor | None,
    blocks: Tensor,
    query: Tensor,
    key: Tensor,
    more: dict[str, Any],
) -> Tensor:
    """The mask that the layer's own indexer makes of the blocks which it has chosen."""
    build = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if build is None:
        raise _refusal(module, "it passes block_indices, and has no indexer that makes a mask")
    positions = more.get("position_ids")
    keys, queries, device = key.shape[2], query.shape[2], query.device
    if positions is None:
        positions = torch.arange(keys - queries, keys, device=device)
    positions = positions.reshape(-1, queries).expand(query.shape[0], -1)
    if isinstance(mask, LazyMask):
        mask = mask.dense
    found: Tensor = build(blocks, mask, keys, query.dtype, device, positions)
    return found


def _documents(
    module: nn.Module, lengths: Tensor, of_keys: Tensor | None, query: Tensor, key: Tensor
) -> Int[Tensor, "1 q"]:
    """Numbers of the documents in a row, from their cumulative lengths."""
    if of_keys is not None and not torch.equal(lengths, of_keys):
        raise _refusal(module, "cu_seq_lens_q and cu_seq_lens_k differ")
    numbers = segments_of_lengths(lengths.long())
    if query.shape[0] != 1 or not numbers.shape[1] == query.shape[2] == key.shape[2]:
        raise _refusal(
            module,
            f"cu_seq_lens_q ends with {numbers.shape[1]}, and there are {query.shape[0]} rows of "
            f"{query.shape[2]} queries and {key.shape[2]} keys",
        )
    return numbers


register()
