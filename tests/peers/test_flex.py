"""Random requests to PyTorch's FlexAttention, not compiled: the same output on every path.

FlexAttention asks a function whether a query attends to a key, and another what becomes of a score.
Here both are written out, pair by pair, as somebody would who has no library: of all that our
function knows. A request is a function of its number; those of one shape are rows of one batch.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from attnlab import compat
from attnlab.kernels import DistanceBias, LinearBias, Reach, Segments, attention
from attnlab.kernels.dispatch import PATHS, request_of

EACH, BATCH, TABLE = 44, 2, 9
SHAPES = [  # queries, keys, key/value heads, query heads to each, width, value width
    (9, 9, 3, 1, 4, 4),
    (7, 12, 2, 2, 5, 3),
    (1, 13, 1, 4, 8, 2),
    (11, 6, 1, 3, 3, 5),
    (20, 20, 2, 1, 2, 7),
    (5, 5, 1, 1, 1, 1),
    (16, 31, 1, 2, 6, 6),
    (70, 70, 1, 2, 8, 4),
    (3, 40, 2, 3, 4, 4),
    (33, 30, 1, 5, 3, 3),
    (8, 8, 4, 2, 16, 16),
    (130, 66, 1, 1, 4, 4),
]
WINDOW = ("none", "keys", "sides")
WHERE = ("anywhere", "chunk", "prefix", "documents", "documents of other lengths", "lengths")
BIAS = ("none", "none", "slopes", "distances", "dense")


@dataclass(frozen=True)
class Asked:
    """One request, and what FlexAttention is told of it, for each row, query or key."""

    tensors: list[Tensor]
    options: dict
    told: dict[str, Tensor]


def asked(shape: int, number: int) -> Asked:
    queries, keys, kv_heads, ratio, width, value_width = SHAPES[shape]
    rng = torch.Generator().manual_seed(1000 * shape + number)
    heads = kv_heads * ratio

    def normal(*sizes):
        return torch.randn(sizes, generator=rng, dtype=torch.float64)

    def up_to(count, *sizes):
        return torch.randint(count + 1, sizes, generator=rng)

    def one_of(choices):
        return choices[int(up_to(len(choices) - 1))]

    tensors = [
        normal(BATCH, heads, queries, width),
        normal(BATCH, kv_heads, keys, width),
        normal(BATCH, kv_heads, keys, value_width),
    ]
    causal, where = one_of((True, True, False)), one_of(WHERE)
    options = {"causal": causal, "align": one_of(("end", "start")), "scale": float(normal())}
    far = queries + keys
    told = {  # what does nothing
        "before": torch.tensor(far),
        "after": torch.tensor(0 if causal else far),
        "chunk": torch.tensor(0),
        "chunks_start": torch.zeros(BATCH, queries).long(),
        "prefix": torch.zeros(BATCH).long(),
        "document": torch.zeros(BATCH, queries).long(),
        "document_of_key": torch.zeros(BATCH, keys).long(),
        "length": torch.full((BATCH,), keys),
        "padding": torch.zeros(BATCH, keys, dtype=torch.bool),
        "scale": torch.tensor(options["scale"], dtype=torch.float64),
        "cap": torch.tensor(0.0).double(),
        "slopes": torch.zeros(heads).double(),
        "table": torch.zeros(heads, TABLE).double(),
        "zero": torch.tensor(0),
        "dense": torch.zeros(BATCH, heads, queries, keys).double(),
        "sinks": torch.full((heads,), -torch.inf).double(),
    }
    first = (
        torch.zeros(BATCH) if options["align"] == "start" else torch.full((BATCH,), keys - queries)
    )
    at = first.long()[:, None] + torch.arange(queries)
    if where != "prefix":
        window = one_of(WINDOW)
        if window == "keys":
            options["window"] = 1 + int(up_to(keys))
            told["before"] = torch.tensor(options["window"] - 1)
            told["after"] = told["after"].minimum(told["before"])
        elif window == "sides":
            before, after = up_to(keys), up_to(0 if causal else keys)
            options["window"] = Reach(before=int(before), after=int(after))
            told |= {"before": before, "after": after}
    if where == "prefix":
        told["prefix"] = options["prefix"] = up_to(keys, BATCH)
    if where == "lengths":
        told["length"] = options["key_lengths"] = up_to(keys, BATCH)
        if options["align"] == "end":
            at = at + options["key_lengths"][:, None] - keys
    if where.startswith("documents"):
        documents = up_to(4, BATCH, keys).sort(1).values
        if where == "documents" and queries <= keys:
            options["segments"] = documents
            first = keys - queries if options["align"] == "end" else 0
            told["document"] = documents[:, first : first + queries]
        else:
            told["document"] = up_to(4, BATCH, queries).sort(1).values
            options["segments"] = Segments(told["document"], documents)
        told["document_of_key"] = documents
        at, told["chunks_start"] = within_documents(told["document"], documents, options["align"])
    if one_of((True, False, False)):
        told["padding"] = options["key_padding"] = up_to(2, BATCH, keys) == 0
    first_tokens = torch.tensor([[*row, False].index(False) for row in told["padding"].tolist()])
    if where == "chunk" or (where.startswith("documents") and one_of((True, False))):
        told["chunk"] = 1 + up_to(keys)
        options["chunk"] = int(told["chunk"])
        if where == "chunk":
            told["chunks_start"] += first_tokens[:, None]
    if where == "prefix":
        told["prefix"] = told["prefix"] + first_tokens
    if one_of((True, False)):
        options["soft_cap"] = 0.1 + 3 * float(torch.rand((), generator=rng))
        told["cap"] = torch.tensor(options["soft_cap"], dtype=torch.float64)
    if one_of((True, False)):
        told["sinks"] = options["sinks"] = normal(heads)
    bias = one_of(BIAS)
    if bias == "slopes":
        told["slopes"] = normal(heads)
        options["bias"] = LinearBias(told["slopes"])
    elif bias == "distances":
        told["table"], told["zero"] = normal(heads, TABLE), up_to(TABLE - 1)
        options["bias"] = DistanceBias(told["table"], int(told["zero"]))
    elif bias == "dense":
        told["dense"] = options["bias"] = normal(BATCH, heads, queries, keys)
    return Asked(tensors, options, told | {"at": at})


def within_documents(ours: Tensor, theirs: Tensor, align: str) -> tuple[Tensor, Tensor]:
    """Where each query stands among the keys, and where its document begins there: by counting."""
    at, begins = torch.zeros_like(ours), torch.zeros_like(ours)
    for row, documents in enumerate(ours.tolist()):
        keys = theirs[row].tolist()
        for i, document in enumerate(documents):
            begin = sum(other < document for other in keys)
            count, others = keys.count(document), documents.count(document)
            place = sum(other == document for other in documents[:i])
            at[row, i] = begin + place + (count - others if align == "end" else 0)
            begins[row, i] = begin
    return at, begins


def by_flex(requests: list[Asked]) -> Tensor:
    """The outputs of requests of one shape, which differ by their row of the batch."""
    t = {
        name: torch.stack([one.told[name] for one in requests]).repeat_interleave(BATCH, 0)
        if requests[0].told[name].dim() == 0 or name in ("slopes", "table", "sinks")
        else torch.cat([one.told[name] for one in requests])
        for name in requests[0].told
    }
    q, k, v = (torch.cat(parts) for parts in zip(*(one.tensors for one in requests), strict=True))

    def attends(b, h, i, j):
        at, start, size = t["at"][b, i], t["chunks_start"][b, i], t["chunk"][b].clamp(min=1)
        near = (at - j <= t["before"][b]) & (j - at <= t["after"][b])
        near = near & ((t["chunk"][b] == 0) | ((at - start) // size == (j - start) // size))
        here = t["document"][b, i] == t["document_of_key"][b, j]
        return (near | (j < t["prefix"][b])) & here & (j < t["length"][b]) & ~t["padding"][b, j]

    def score(product, b, h, i, j):
        scaled, cap, away = product * t["scale"][b], t["cap"][b], t["at"][b, i] - j
        capped = torch.where(cap > 0, cap * torch.tanh(scaled / cap), scaled)
        column = (t["zero"][b] + away).clamp(0, TABLE - 1)
        biased = capped - t["slopes"][b, h] * away.abs() + t["table"][b, h, column]
        return biased + t["dense"][b, h, i, j]

    blocks = create_block_mask(attends, len(q), None, q.shape[2], k.shape[2], device="cpu")
    with compat.recompile_limit(1 << 10):  # it is traced for each shape, though not compiled
        out, aux = flex_attention(
            q, k, v, score, blocks, 1.0, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
    # it has no sinks: with its total of the scores one can be put beside them
    kept = (aux.lse - torch.logaddexp(aux.lse, t["sinks"][:, :, None])).exp()
    return out * kept.nan_to_num(1)[..., None]  # without keys and sinks there is nothing to take


@pytest.fixture(scope="module")
def answered() -> list[tuple[Asked, Tensor]]:
    found = []
    for shape in range(len(SHAPES)):
        requests = [asked(shape, number) for number in range(EACH)]
        found += zip(requests, by_flex(requests).split(BATCH), strict=True)
    return found


def refusal(path: str, one: Asked) -> str | None:
    return PATHS[path].refusal(request_of(*one.tensors, **one.options))


@pytest.mark.parametrize("path", ["auto", *PATHS])
def test_output_is_that_of_flex_attention(path, answered):
    taken = 0
    for one, theirs in answered:
        if path == "auto" or refusal(path, one) is None:
            taken += 1
            error = (attention(*one.tensors, path=path, **one.options) - theirs).abs().max()
            assert error < 1e-12, f"off by {error:.1e}: {one.options}"  # float64, 70 keys at most
    plain = sum("soft_cap" not in one.options and "sinks" not in one.options for one, _ in answered)
    banded = sum(not isinstance(one.options.get("bias"), Tensor) for one, _ in answered)
    some = {"sdpa": plain, "native": banded, "tiled": banded}
    some |= {"flex": 0, "triton": 0}  # they take no float64
    assert taken == some.get(path, len(answered))
    assert len(answered) == 528


def test_requests_are_of_all_kinds(answered):
    requests = [one for one, _ in answered]
    shares = {
        "window": 0.3,
        **dict.fromkeys(("chunk", "segments"), 0.15),
        **dict.fromkeys(("prefix", "key_lengths"), 0.1),
        **dict.fromkeys(("soft_cap", "sinks", "bias"), 0.4),
        "key_padding": 0.2,
    }
    for name, share in shares.items():
        assert sum(name in one.options for one in requests) > share * len(requests), name
