"""Our attention in models of `transformers`: the same numbers as eager, whatever the mask."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.audit.hf.models import model_of
from attnlab.audit.hf.running import quiet, running
from attnlab.integrations import mask_terms, own_eager
from attnlab.integrations.lazy_mask import LazyMask
from attnlab.kernels.dispatch import record_choices

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM
from transformers import masking_utils as library
from transformers.models.llama import modeling_llama

from attnlab.integrations import transformers as ours

# what differs in attention: windows, caps, sinks, chunks, scales, head norms, fused projections,
# latent heads, a bias by distance, keys that an indexer chooses
ARCHITECTURES = (
    *("llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "qwen3", "olmo2", "phi3", "gpt2"),
    *("gpt_neox", "llama4_text", "deepseek_v3", "deepseek_v32", "t5gemma", "minimax_m3_vl_text"),
)
DECODERS = tuple(one for one in ARCHITECTURES if one != "t5gemma")
STATIC = tuple(one for one in DECODERS if one not in ("deepseek_v32", "minimax_m3_vl_text"))
LIMIT = 1e-12  # float64, of numbers of the size of 1


@cache
def model(arch: str) -> Any:
    """In float64 throughout, with weights that are none at 0."""
    name = f"seq2seq/{arch}" if arch == "t5gemma" else arch
    made = model_of(name, "eager", dtype=torch.float64)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=rng, dtype=torch.float64)
    return made


def by(arch: str, name: str) -> Any:
    made = model(arch)
    with quiet():
        made.set_attn_implementation(name)
    assert made.config._attn_implementation == name
    return made


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(97, (rows, length), generator=torch.Generator().manual_seed(seed))


def left_padded(rows: int, length: int, padding: int) -> Tensor:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :padding] = 0
    return mask


def logits(arch: str, name: str, x: Tensor, **given: Any) -> Tensor:
    made = by(arch, name)
    if made.config.is_encoder_decoder:
        given["decoder_input_ids"] = tokens(len(x), 9, 3)
    with torch.no_grad(), quiet(), running(made):
        return made(x, use_cache=False, **given).logits


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_are_those_of_eager(arch):
    x = tokens(2, 23)
    with record_choices() as choices:
        mine = logits(arch, "attnlab", x)
    assert choices  # it was our attention
    torch.testing.assert_close(mine, logits(arch, "eager", x), rtol=LIMIT, atol=LIMIT)


@pytest.mark.parametrize("arch", [one for one in ARCHITECTURES if one != "minimax_m3_vl_text"])
def test_a_left_padded_batch_is_that_of_eager(arch):
    x, mask = tokens(2, 21), left_padded(2, 21, 10)
    mine, true = (logits(arch, name, x, attention_mask=mask) for name in ("attnlab", "eager"))
    kept = mask[:, : mine.shape[1]].bool() if mine.shape[1] == 21 else slice(None)
    torch.testing.assert_close(mine[kept], true[kept], rtol=LIMIT, atol=LIMIT)


def gradients(arch: str, name: str, **given: Any) -> dict[str, Tensor]:
    made, x = by(arch, name), tokens(2, 19, 4)
    if made.config.is_encoder_decoder:
        given["labels"] = tokens(2, 9, 3)
    else:  # nothing is learned from padding: what eager gives there is the mean of all values
        given["labels"] = x.masked_fill(given["attention_mask"] == 0, -100)
    with quiet(), running(made):
        made(x, use_cache=False, **given).loss.backward()
    found = {one: weight.grad for one, weight in made.named_parameters() if weight.grad is not None}
    made.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_gradients_of_a_training_loss_are_those_of_eager(arch):
    mask = left_padded(2, 19, 0)
    mask[1, 15:] = 0
    mine, true = (gradients(arch, name, attention_mask=mask) for name in ("attnlab", "eager"))
    assert mine.keys() == true.keys() and mine
    for name, exact in true.items():
        torch.testing.assert_close(mine[name], exact, rtol=1e-9, atol=LIMIT)


def generate(arch: str, name: str, **how: Any) -> Tensor:
    made, x = by(arch, name), tokens(2, 11, 5)
    usual = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 99}
    with torch.no_grad(), quiet(), running(made):
        found: Tensor = made.generate(x, **{**usual, **how})
    return found


@pytest.mark.parametrize("arch", STATIC)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"attention_mask": left_padded(2, 11, 4)},
        {"num_beams": 3, "attention_mask": left_padded(2, 11, 4)},
        {"cache_implementation": "static", "attention_mask": left_padded(2, 11, 4)},
    ],
    ids=["greedy", "left-padded", "beams", "static"],
)
def test_generated_text_is_that_of_eager(arch, how):
    assert torch.equal(generate(arch, "attnlab", **how), generate(arch, "eager", **how))


def test_packed_documents_do_not_see_each_other():
    """Where the library finds them by positions, and where it is told their lengths."""
    lengths = torch.tensor([0, 5, 12, 13, 20])
    positions = torch.cat([torch.arange(n) for n in lengths.diff().tolist()])[None]
    x = tokens(1, 20)
    for arch in ("llama", "mistral", "llama4_text"):
        true = logits(arch, "eager", x, position_ids=positions)
        more = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths}
        for given in ({}, more):
            mine = logits(arch, "attnlab", x, position_ids=positions, **given)
            torch.testing.assert_close(mine, true, rtol=LIMIT, atol=LIMIT)
    # whose masks the library makes without positions: there they do see each other
    alone = [logits("gpt_oss", "eager", one) for one in x.split(lengths.diff().tolist(), dim=1)]
    mine = logits("gpt_oss", "attnlab", x, position_ids=positions, **more)
    torch.testing.assert_close(mine, torch.cat(alone, dim=1), rtol=LIMIT, atol=LIMIT)
    told = logits("gpt_oss", "attnlab", x, **more)  # positions that go on tell no documents
    torch.testing.assert_close(told, torch.cat(alone, dim=1), rtol=LIMIT, atol=LIMIT)
    for arch in ("llama", "gpt_oss"):
        with pytest.raises(ValueError, match="tell different documents"):
            wrong = torch.tensor([0, 7, 20])
            logits(arch, "attnlab", x, position_ids=positions, cu_seq_lens_q=wrong)
    with pytest.raises(ValueError, match="cu_seq_lens_q ends with 9"):
        logits("llama", "attnlab", x, cu_seq_lens_q=torch.tensor([0, 4, 9]))


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt_oss"])
def test_a_mask_of_ones_own_is_served_as_it_is(arch):
    rng = torch.Generator().manual_seed(7)
    mask = torch.rand(2, 1, 13, 13, generator=rng) < 0.5
    mask |= torch.eye(13, dtype=torch.bool)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e300)
    x = tokens(2, 13)
    true = logits(arch, "eager", x, attention_mask=added)
    for given in (added, mask):
        if arch != "llama" and given is mask:  # these take one mask for each kind of layer
            continue
        mine = logits(arch, "attnlab", x, attention_mask=given)
        torch.testing.assert_close(mine, true, rtol=LIMIT, atol=LIMIT)


def mask_by(name: str, given: Tensor | None = None, **how: Any) -> Tensor:
    config = copy.deepcopy(model("llama").config)
    config._attn_implementation = name
    config.sliding_window, config.attention_chunk_size = 4, 5
    make = getattr(library, how.pop("make", "create_causal_mask"))
    rows = 2 if given is None else len(given)
    return make(config, torch.zeros(rows, 13, 8), given, how.pop("past", None), **how)


SHAPES = {
    "causal": {},
    "window": {"make": "create_sliding_window_causal_mask"},
    "chunks": {"make": "create_chunked_causal_mask"},
    "two-sided": {
        "make": "create_bidirectional_sliding_window_mask",
        "allow_is_bidirectional_skip": False,
    },
    "all": {"make": "create_bidirectional_mask", "allow_is_bidirectional_skip": False},
    "packed": {"position_ids": torch.tensor([[*range(5), *range(8)], [*range(9), *range(4)]])},
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_mask_that_is_read_has_the_keys_of_the_librarys(name, padded):
    if name == "packed" and padded:
        pytest.skip("with a padding mask the library looks for no documents")
    given = left_padded(2, 13, 6) if padded else None
    lazy, true = (mask_by(one, given, **SHAPES[name]) for one in ("attnlab", "eager"))
    assert isinstance(lazy, LazyMask) and lazy.plan is not None
    assert lazy.shape == true.shape and lazy.dtype == true.dtype
    q = torch.randn(2, 2, 13, 8)
    out = ours._compute(q, q, q, lazy)
    rows = (true == 0).any(-1)[:, 0]  # of a row without keys eager takes the mean of all
    torch.testing.assert_close(out[rows], ours._compute(q, q, q, true)[rows], rtol=1e-4, atol=1e-5)
    assert torch.equal(lazy + 0, true)  # and whoever looks inside finds the library's


def test_a_mask_with_terms_of_a_models_own_is_taken_as_it_is():
    def evens(b, h, q, k):
        return k % 2 == 0

    blocks = torch.tensor([[-1] * 4 + [0] * 5 + [-1] * 4] * 2)
    for how in (
        {"or_mask_function": evens},
        {"and_mask_function": evens},
        {"block_sequence_ids": blocks},
    ):
        mine, true = (mask_by(name, **how) for name in ("attnlab", "eager"))
        assert not isinstance(mine, LazyMask)
        assert torch.equal(mine, true)


def test_a_function_that_says_something_else_is_not_read(monkeypatch):
    """Were the library's window one key longer, its name would not be believed."""

    def longer(sliding_window):
        def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
            return kv_idx >= q_idx - sliding_window

        return inner_mask

    monkeypatch.setattr(library, "sliding_window_overlay", longer)
    mask_terms._codes.cache_clear()
    try:
        mine, true = (mask_by(name, **SHAPES["window"]) for name in ("attnlab", "eager"))
    finally:
        mask_terms._codes.cache_clear()
    assert not isinstance(mine, LazyMask) and torch.equal(mine, true)


def test_a_plan_is_compared_with_the_function(monkeypatch):
    """The negative control: with terms that are read wrongly there is no plan."""
    term = mask_terms._term

    def wrong(function):
        found = term(function)
        return {"before": found["before"] + 1} if found and "before" in found else found

    assert isinstance(mask_by("attnlab", **SHAPES["window"]), LazyMask)
    monkeypatch.setattr(mask_terms, "_term", wrong)
    assert not isinstance(mask_by("attnlab", **SHAPES["window"]), LazyMask)


@pytest.mark.parametrize("inference", [False, True])
def test_what_a_model_does_to_its_mask_counts(inference):
    """It may compute with it, or write into it."""
    with torch.inference_mode(inference):
        lazy, true = mask_by("attnlab"), mask_by("eager")
        assert lazy[:, :, :, :13].plan is not None and lazy.detach().plan is not None
        assert torch.equal(lazy[:, :, -1:, 2:5], true[:, :, -1:, 2:5])
        for one in (lazy, true):
            one[:, :, 5:, 3] = torch.finfo(torch.float32).min
        lazy[:, :, 0].fill_(0), true[:, :, 0].fill_(0)
        lazy.masked_fill_(lazy > 1, 0)
        assert lazy.plan is None and torch.equal(lazy.dense, true)
        q = torch.randn(2, 2, 13, 8)
        assert torch.equal(ours._compute(q, q, q, lazy), ours._compute(q, q, q, true))


def test_a_mask_that_does_not_fit_is_refused():
    q, k = torch.randn(2, 2, 13, 8), torch.randn(2, 2, 14, 8)
    with pytest.raises(ValueError, match="the last two must be the same"):
        ours._compute(q, k, k, mask_by("attnlab"))


class Layer(nn.Module):
    is_causal = False


def refused(match: str, layer: nn.Module | None = None, mask: Any = None, **given: Any) -> None:
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match=match) as caught:
        ours.attend(layer or Layer(), q, q, q, mask, **given)
    assert "use attn_implementation='eager'" in str(caught.value)


def test_what_is_not_known_is_refused_in_one_line():
    refused("Layer: attnlab knows no 'temperature'", temperature=torch.ones(2))
    refused("Layer: .* has no indexer", block_indices=torch.zeros(1, 2, 3, 2, dtype=torch.long))
    causal = Layer()
    causal.is_causal = True
    refused("Layer: it is causal and passes no mask", causal)
    refused("Identity: .* does not say whether it is causal", nn.Identity())


def test_a_layer_whose_own_attention_is_another_is_refused(monkeypatch):
    """Here it is twice as sharp, which nobody is told."""
    file = modeling_llama
    usual = file.eager_attention_forward

    def sharper(module, q, *given, **how):
        return usual(module, 2 * q, *given, **how)

    sharper.__name__ = "eager_attention_forward"
    monkeypatch.setattr(file, "eager_attention_forward", sharper)
    own_eager._known.clear()
    try:
        with pytest.raises(
            ValueError, match="LlamaAttention: its eager attention is not the usual"
        ):
            logits("llama", "attnlab", tokens(1, 5))
    finally:
        own_eager._known.clear()


def test_dropout_leaves_out_weights_and_scales_the_others():
    """Values that are the unit vectors show the weights: 0, or what they were by 1 - p."""
    layer, q, v = Layer(), torch.randn(1, 2, 64, 8), torch.eye(64).expand(1, 2, -1, -1)
    whole = ours.attend(layer, q, q, v, None)[0]
    torch.manual_seed(0)
    part = ours.attend(layer, q, q, v, None, dropout=0.5)[0]
    kept = part != 0
    assert kept.any() and not kept.all()
    torch.testing.assert_close(part[kept], 2 * whole[kept])
    layer.eval()
    assert torch.equal(ours.attend(layer, q, q, v, None, dropout=0.5)[0], whole)


def test_registering_twice_changes_nothing():
    before = logits("llama", "attnlab", tokens(1, 7))
    ours.register()
    assert torch.equal(logits("llama", "attnlab", tokens(1, 7)), before)


def test_a_saved_model_is_read_with_it(tmp_path):
    model("llama").save_pretrained(tmp_path)
    with quiet():
        read = AutoModelForCausalLM.from_pretrained(
            tmp_path, attn_implementation="attnlab", dtype=torch.float32
        )
    assert read.config._attn_implementation == "attnlab"
    x = tokens(1, 9)
    with torch.no_grad(), quiet(), record_choices() as choices:
        mine = read(x).logits
    assert choices
    torch.testing.assert_close(mine, logits("llama", "eager", x).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant):
    made, x = model_of("mistral", "attnlab"), tokens(2, 19)

    def step() -> list[Tensor]:
        with record_choices() as choices, quiet():
            made(x, labels=x, use_cache=False).loss.backward()
        assert {one.path for one in choices} == {"native"}  # no mask was made
        found = [weight.grad for weight in made.parameters()]
        made.zero_grad(set_to_none=True)
        return found

    true = step()
    made.gradient_checkpointing_enable({"use_reentrant": reentrant})
    made.train()
    torch.testing.assert_close(step(), true, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("arch", ["bloom", "mpt"])
def test_a_model_with_attention_of_its_own_computes_as_ever(arch):
    """It does not take ours; the mask that it is given is the library's for whoever looks."""
    x, mask = tokens(2, 9), left_padded(2, 9, 3)
    eager, mine = (model_of(arch, name, dtype=torch.float64) for name in ("eager", "attnlab"))
    mine.load_state_dict(eager.state_dict())
    with torch.no_grad(), quiet(), running(eager):
        true, found = (one(x, attention_mask=mask).logits for one in (eager, mine))
    torch.testing.assert_close(found, true, rtol=LIMIT, atol=LIMIT)
