"""ONNX's own test vectors for Attention and RotaryEmbedding, on every path that takes them.

The package `onnx` brings cases for each operator: a node, its inputs, and the outputs that a
backend must give. An adapter makes one call of ours of a node. All cases are run, also those of
versions of `onnx` that come later. (Each case is there a second time, the node written out as a
graph of smaller ones, with the same numbers: those are not run.)

What is the adapter's own, since our function does not give it: present keys and values, which are a
concatenation, and scores before the softmax.
"""

from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.kernels import Reach, Rotation, attention, hardware, rotate
from attnlab.kernels.dispatch import PATHS, request_of

# Cases that each path takes, of the 93 of onnx 1.23; a later version may have more. Refused are
# caps (sdpa), masks as tensors (native, tiled), fewer than 128 queries (flex), the CPU (triton).
TAKEN = {"reference": 93, "sdpa": 82, "native": 41, "tiled": 41, "flex": 0, "triton": 0}
SCORES, MADE_UP = 12, 3  # of these, how many ask for scores, and need queries that are made up
ROTARY = 8

# Both sides round: float32 in sums of some ten terms, halves at each step of theirs. ONNX's runner
# allows 1e-3, and of bfloat16 two last bits as here; in float16 that would be one of them.
TOLERANCE = {torch.float32: 2**-17, torch.float16: 2**-9, torch.bfloat16: 2**-6}


@dataclass(frozen=True)
class Case:
    name: str
    given: dict[str, Tensor]
    attributes: dict[str, float]
    expected: dict[str, Tensor]


def cases_of(operator: str) -> list[Case]:
    reason = f"the test vectors of {operator} come with onnx: pip install 'attnlab[dev]'"
    onnx = pytest.importorskip("onnx", reason=reason)
    cases = import_module("onnx.backend.test.case.node")
    import_module(f"{cases.__name__}.{operator.lower()}")  # which puts its cases into a list
    found = []
    for case in cases._NodeTestCases:
        node = case.model.graph.node[0]
        if len(case.model.graph.node) == 1 and node.op_type == operator:
            ((given, expected),) = case.data_sets
            attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            found.append(
                Case(
                    case.name,
                    by_name(node.input, given),
                    attributes,
                    by_name(node.output, expected),
                )
            )
    return found


def by_name(names, arrays) -> dict[str, Tensor]:
    """An input or output that is left out has an empty name and no array."""
    return {name: tensor_of(array) for name, array in zip(filter(None, names), arrays, strict=True)}


def tensor_of(array) -> Tensor:
    if array.dtype.name == "bfloat16":  # of which NumPy itself knows nothing
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array)


@pytest.fixture(scope="module")
def attentions() -> list[Case]:
    return cases_of("Attention")


@dataclass(frozen=True)
class Call:
    """A node as a call of ours, and how many queries in front are made up."""

    tensors: tuple[Tensor, Tensor, Tensor]
    options: dict
    made_up: int = 0

    @property
    def request(self):
        return request_of(*self.tensors, **self.options)

    def out(self, path: str) -> Tensor:
        return self.asked_for(attention(*self.tensors, path=path, **self.options))

    def weights(self) -> Tensor:
        return self.asked_for(attention(*self.tensors, return_weights=True, **self.options)[1])

    def scores(self, capped: bool, biased: bool) -> Tensor:
        """Not an output of ours: the adapter's own."""
        request, (q, k, _) = self.request, self.tensors
        scores = q @ k.repeat_interleave(request.group, 1).mT * request.factor
        if capped and request.soft_cap is not None:
            scores = request.soft_cap * (scores / request.soft_cap).tanh()
        if biased:
            scores = (scores + (0 if request.bias is None else request.bias)).masked_fill(
                ~request.visible(), -torch.inf
            )
        return self.asked_for(scores)

    def asked_for(self, x: Tensor) -> Tensor:
        return x[:, :, self.made_up :]


def call_of(case: Case) -> Call:
    given, attributes = case.given, case.attributes
    heads = [attributes.get(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    q, k, v = (heads_first(given[name], count) for name, count in zip("QKV", heads, strict=True))
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = torch.cat((given["past_key"], k), 2), torch.cat((given["past_value"], v), 2)
    lengths, causal = given.get("nonpad_kv_seqlen"), bool(attributes.get("is_causal"))
    window = window_of(attributes, causal)
    bias = bias_of(given.get("attn_mask"), k.shape[2], q.dtype)
    # the queries come after the past, or are the last of so many keys
    made_up, align = 0, "start"
    if lengths is not None or past + q.shape[2] == k.shape[2]:
        align = "end"
    elif causal or window is not None:
        # after the past, and more or fewer than there are new keys: nobody decodes so, and we have
        # no word for it. Those that came before are added to the queries.
        made_up, q = past, F.pad(q, (0, 0, past, 0))
        if bias is not None and bias.dim() > 1 and bias.shape[-2] > 1:
            bias = F.pad(bias, (0, 0, past, 0))
    options = {
        "causal": causal,
        "window": window,
        "align": align,
        "key_lengths": lengths,
        "bias": bias,
        "scale": attributes.get("scale"),
        "soft_cap": attributes.get("softcap") or None,
    }
    return Call((q, k, v), options, made_up)


def heads_first(x: Tensor, heads: float | None) -> Tensor:
    """[b, t, c] -> [b, h, t, d]"""
    return x if x.dim() == 4 else x.unflatten(-1, (int(heads), -1)).transpose(1, 2)


def as_given(x: Tensor, like: Tensor) -> Tensor:
    return x if like.dim() == 4 else x.transpose(1, 2).flatten(-2)


def window_of(attributes: dict[str, float], causal: bool) -> Reach | None:
    before, after = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if before < 0 and after < 0:
        return None
    return Reach(
        before=before if before >= 0 else None, after=after if after >= 0 and not causal else None
    )


def bias_of(mask: Tensor | None, keys: int, dtype: torch.dtype) -> Tensor | None:
    """A mask of any rank as numbers to add; past its end no key is attended to."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
    return F.pad(mask, (0, keys - mask.shape[-1]), value=-torch.inf)


def answer(case: Case, path: str) -> dict[str, Tensor]:
    call, mode = call_of(case), case.attributes.get("qk_matmul_output_mode", 0)
    _, k, v = call.tensors
    out = {
        "Y": as_given(call.out(path), case.given["Q"]),
        "present_key": k,
        "present_value": v,
    }
    if "qk_matmul_output" in case.expected:
        out["qk_matmul_output"] = (
            call.weights() if mode == 3 else call.scores(capped=mode > 0, biased=mode == 2)
        )
    return {name: out[name] for name in case.expected}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> str | None:
    """The first output that is not what it should be."""
    for name, wanted in expected.items():
        rtol = TOLERANCE[wanted.dtype]
        try:
            mine = found[name].to(wanted.dtype)
            torch.testing.assert_close(mine, wanted, rtol=rtol, atol=1e-7)
        except AssertionError as error:
            return f"{name}: {error}"
    return None


def in_a_dtype_that_runs(case: Case) -> Case:
    """Halves in float32, where the CPU has no products of halves; native does so by itself."""
    half = case.given["Q"].dtype
    if half not in hardware.HALVES or hardware.cpu_multiplies(str(half).removeprefix("torch.")):
        return case
    given = {name: x.float() if x.dtype == half else x for name, x in case.given.items()}
    return replace(case, given=given)


@pytest.mark.parametrize("path", PATHS)
def test_attention_gives_what_onnx_expects_of_it(path, attentions):
    taken, wrong = 0, {}
    for case in map(in_a_dtype_that_runs, attentions):
        if PATHS[path].refusal(call_of(case).request) is None:
            taken += 1
            wrong[case.name] = difference(answer(case, path), case.expected)
    wrong = {name: why for name, why in wrong.items() if why}
    assert not wrong, f"{len(wrong)} of {taken} cases differ: {wrong}"
    assert taken >= TAKEN[path]
    if path == "reference":
        assert taken == len(attentions)


def test_the_path_taken_by_itself_gives_what_onnx_expects(attentions):
    for case in map(in_a_dtype_that_runs, attentions):
        assert difference(answer(case, "auto"), case.expected) is None, case.name


def test_the_adapter_has_little_of_its_own(attentions):
    calls = [call_of(case) for case in attentions]
    modes = [
        case.attributes.get("qk_matmul_output_mode", 0)
        for case in attentions
        if "qk_matmul_output" in case.expected
    ]
    assert sum(call.made_up > 0 for call in calls) == MADE_UP
    assert sum(mode < 3 for mode in modes) == SCORES


def test_rotate_gives_what_onnx_expects_of_its_rotary_embedding():
    cases = cases_of("RotaryEmbedding")
    assert len(cases) >= ROTARY
    for case in cases:
        x = heads_first(case.given["input"], case.attributes.get("num_heads"))
        tables = [case.given[f"{name}_cache"] for name in ("cos", "sin")]
        if "position_ids" in case.given:
            tables = [table[case.given["position_ids"]] for table in tables]
        layout = "interleaved" if case.attributes.get("interleaved") else "half-split"
        out = rotate(x, Rotation(*(table[:, None] for table in tables), layout))
        out = as_given(out, case.given["input"])
        assert difference({"output": out}, case.expected) is None, case.name
