"""A step over caches that stay where they are is the model's own forward pass."""

import pytest
import torch
from models.test_decoding import CHANGES, MORE, PLANNED, build, make
from models.test_variants import BESIDE, VARIANTS, settings_of

from attnlab import registry
from attnlab.kernels import hardware
from attnlab.models import decoding, static_step
from attnlab.models.feedforward import KINDS
from attnlab.models.static_step import StaticStep

# rounding, of numbers of some tens; of half precisions a few of its units
TWICE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 0.06, torch.float16: 0.01}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Where it runs in tests; `generate` takes it on CUDA only."""
    monkeypatch.setattr(static_step, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(static_step, "LEAST_KEYS", 16)


@torch.no_grad()
def compare(model, steps=24, batch=2, length=9, padded=False, room=None):
    """Steps beside the forward pass: the logits, and what both leave in the caches."""
    assert static_step.why_not(model) is None
    step = StaticStep(model, room or length + steps)
    rng, device = torch.Generator().manual_seed(1), step.device
    tokens = torch.randint(13, (batch, length), generator=rng).to(device)
    pads = (torch.arange(batch) * 2 % 5 if padded else torch.zeros(batch)).long()[:, None]
    positions = (torch.arange(length)[None] - pads).to(device)
    given = {"key_padding": positions < 0} if padded else {}
    other = model.new_cache()
    for cache in (step.cache, other):
        last = model(tokens, positions=positions.clamp(min=0), cache=cache, **given)[:, -1]
    count, ages = torch.full((1,), length, device=device), positions[:, -1:] + 1
    for _ in range(steps):
        tokens = torch.randint(13, (batch, 1), generator=rng).to(device)
        want = model(tokens, positions=ages, cache=other)[:, -1]
        if step.cache.length == step.room:
            step.grow()
        got = step(tokens, ages, count, step.keys_at(step.cache.length))
        step.cache.length += 1
        count, ages = count + 1, ages + 1
        close(got, want)
    assert not torch.equal(got, last)
    for mine, theirs in zip(step.layers, other.layers, strict=True):
        held = theirs._read(max(theirs._stop - (mine.window or theirs._stop), 0))
        at = torch.arange(other.length - held.k.shape[2], other.length, device=device)
        for one, two in ((mine.k, held.k), (mine.v, held.v)):
            close(one[:, :, at % mine.places], two)


def close(got, want):
    limit = TWICE[want.dtype] * max(float(want.abs().max()), 1)
    torch.testing.assert_close(got, want, atol=limit, rtol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", ["window=none", "window=4,20,none"])
@pytest.mark.parametrize("attention", ["multi-head", "grouped"])
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none", "sinusoidal", "learned"])
def test_a_step_is_the_forward_pass(scheme, attention, window, padded):
    model = build(f"positions={scheme}", f"attention={attention}", window)
    compare(model, padded=padded)


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("beside", BESIDE[:2], ids=str)
@pytest.mark.parametrize("window", ["window=none", "window=5,none"])
def test_variants_that_are_standard_are_served(name, beside, window):
    compare(make(settings_of(name, window, *beside)), steps=9, padded=True)


@pytest.mark.parametrize("norm", ["layer", "rms", "unit"])
@pytest.mark.parametrize("feedforward", KINDS)
@pytest.mark.parametrize("bias", ["true", "false"])
def test_every_kind_of_block_is_computed(norm, feedforward, bias):
    words = f"norm={norm}", f"feedforward={feedforward}", f"bias={bias}", "tied=false"
    compare(build(*words), steps=2)


@pytest.mark.parametrize("words", MORE, ids=" ".join)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_a_layer_may_ask_for_is_computed(words, dtype):
    compare(build(*words, dtype=dtype), padded=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "words", [[], ["positions=alibi"], ["soft_cap=3", "sink=learned", "window=4,none"]], ids=str
)
def test_half_precisions_are_served(words, dtype):
    if not hardware.cpu_multiplies(str(dtype).removeprefix("torch.")):
        pytest.skip("this CPU multiplies no such numbers")
    compare(build(*words, dtype=dtype), steps=9, padded=True)


def test_caches_grow_when_there_are_more_tokens_than_expected():
    compare(build("window=6,40,none"), room=10, steps=60)
    compare(build("positions=alibi", "attention=grouped"), room=16, steps=40, padded=True)


@pytest.mark.parametrize("room", [16, 144, 300, 1000, 4096])
def test_a_step_attends_to_all_keys_and_to_few_places(room, monkeypatch):
    monkeypatch.setattr(static_step, "LEAST_KEYS", 256)
    step = StaticStep(build(), room)
    sizes = [step.keys_at(length) for length in range(step.room)]
    assert all(length < keys <= step.room for length, keys in enumerate(sizes))
    assert all(keys < max(4 * (length + 1), 512) for length, keys in enumerate(sizes))
    assert sizes == sorted(sizes) and len(set(sizes)) <= 5


@torch.no_grad()
def test_what_lies_in_places_not_written_to_is_not_read():
    """Of texts before these: a buffer serves many."""
    model = build("window=9,none", "attention=grouped")
    found = []
    for before in (None, 30):
        step = StaticStep(model, 48)
        if before is not None:
            model(torch.full((2, before), 5), cache=step.cache)
            step.cache.reset()
        model(torch.full((2, 7), 3), cache=step.cache)
        tokens, count = torch.tensor([[1], [2]]), torch.tensor([7])
        found.append(step(tokens, torch.tensor([[7], [7]]), count, step.keys_at(7)))
    assert torch.equal(*found)


@torch.no_grad()
def test_scores_too_large_for_the_dtype_are_the_largest_number():
    model = build("positions=none", "score.scale=1000", "sink=fixed", dtype=torch.float32)
    for block in model.blocks:
        block.attention.project.weight[:48] *= 1e18  # products of them are finite, scores are not
    step = StaticStep(model, 16)
    model(torch.tensor([[1, 2, 3]]), cache=step.cache)
    tokens, count = torch.tensor([[3]]), torch.tensor([3])
    assert step(tokens, count[None], count, step.keys_at(3)).isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_what_has_a_plan_on_the_cpu_is_served(name, beside):
    model = make(settings_of(name, *beside))
    standard = name in PLANNED and not any(word.startswith("chunk") for word in beside)
    assert (static_step.why_not(model) is None) == standard


@pytest.mark.parametrize(
    "word",
    [
        f"{kind}={option.name}"
        for kind in ("attention", "score", "positions")
        for option in registry.options(kind)
    ],
)
def test_every_option_is_served_and_equal_or_has_a_reason(word):
    model = build(word, *(["positions=none"] if "delta" in word else []))
    if static_step.why_not(model) is None:
        compare(model, steps=3)


@pytest.mark.parametrize("reason", CHANGES)
def test_a_model_that_somebody_changed_is_not_served(reason):
    model = build()
    CHANGES[reason](model)
    half = "embed" in reason
    assert static_step.why_not(model) == (None if half else reason)


def test_other_devices_and_models_have_reasons(monkeypatch):
    model = build()
    with torch.autocast("cpu", torch.bfloat16):
        assert static_step.why_not(model) == "autocast is on"
    monkeypatch.setattr(static_step, "DEVICES", ("cuda",))
    assert static_step.why_not(model) == "the model is on the cpu, where nothing is captured"
    elman = registry.load("model", "elman")(vocabulary=13, width=16).build()
    assert static_step.why_not(elman) == "only transformers with a cache have one"
    reason = decoding.why_not_standard(model, torch.device("cuda", 0), (torch.float64,))
    assert reason == "embed.weight does not lie in one piece on the CUDA:0"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", list(TWICE), ids=str)
@pytest.mark.parametrize(
    "words",
    [
        ["window=4,none", "attention=grouped"],
        ["positions=alibi", "norm=layer"],
        ["positions=learned", "feedforward=swiglu", "bias=true"],
        *MORE,
    ],
    ids=" ".join,
)
def test_a_step_on_cuda_is_the_forward_pass(words, dtype):
    compare(build("width=64", *words, dtype=dtype).cuda(), padded=True)
