"""A planned step of decoding is the model's own forward pass, or there is no plan."""

import platform

import pytest
import torch
from models.test_variants import BESIDE, VARIANTS, settings_of

from attnlab import config, registry
from attnlab.attention.cache import Cache
from attnlab.kernels import native, step
from attnlab.models import decoding
from attnlab.models.feedforward import KINDS
from attnlab.models.transformer import TransformerSettings

pytestmark = pytest.mark.needs_compiler

SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=3)
TWICE = {torch.float64: 1e-11, torch.float32: 2e-5}  # rounding, of numbers of some tens

PLANNED = [  # the variants that are standard transformers
    *("gains that are offsets", "norms after the parts", "parts side by side"),
]


def make(settings, dtype=torch.float64):
    torch.manual_seed(0)
    model = settings.build().to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # far from the start, where everything is flat
    return model


def build(*words, dtype=torch.float64):
    return make(config.override(SMALL, words), dtype)


def read(model, batch=2, length=9, kind="auto", padded=False):
    """Two caches of the same texts, the positions that come next, and what padding there was."""
    rng = torch.Generator().manual_seed(1)
    tokens = torch.randint(13, (batch, length), generator=rng)
    pads = (torch.arange(batch) * 2 % 5 if padded else torch.zeros(batch)).long()[:, None]
    positions = torch.arange(length)[None] - pads
    caches = model.new_cache(kind), model.new_cache(kind)
    for cache in caches:
        given = {"key_padding": positions < 0} if padded else {}
        model(tokens, positions=positions.clamp(min=0), cache=cache, **given)
    return caches, positions[:, -1:] + 1


@torch.no_grad()
def compare(model, steps=30, threads=1, **options):
    """Steps of a plan beside the forward pass: the logits, and what both leave in the caches."""
    (ours, theirs), positions = read(model, **options)
    assert decoding.why_not(model, ours) is None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plan = decoding.plan(model, ours)
        rng = torch.Generator().manual_seed(2)
        for _ in range(steps):
            tokens = torch.randint(13, positions.shape, generator=rng)
            want = model(tokens, positions=positions, cache=theirs)[:, -1]
            close(plan(tokens, positions), want)
            positions = positions + 1
    finally:
        torch.set_num_threads(before)
    assert ours.length == theirs.length
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        for one, two in zip(mine._read(0)[:2], other._read(0)[:2], strict=True):
            close(one, two)


def close(got, want):
    limit = TWICE[want.dtype]
    torch.testing.assert_close(got, want, atol=limit * max(float(want.abs().max()), 1), rtol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", ["window=none", "window=4,none"])
@pytest.mark.parametrize("attention", ["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none", "sinusoidal", "learned"])
def test_a_step_is_the_forward_pass(scheme, attention, window, padded):
    model = build(f"positions={scheme}", f"attention={attention}", window)
    compare(model, padded=padded)


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("beside", BESIDE[:2], ids=str)
@pytest.mark.parametrize("window", ["window=none", "window=5,none"])
def test_variants_that_are_standard_have_a_plan(name, beside, window):
    compare(make(settings_of(name, window, *beside)), padded=True)


@pytest.mark.parametrize("norm", ["layer", "rms", "unit"])
@pytest.mark.parametrize("feedforward", KINDS)
@pytest.mark.parametrize("bias", ["true", "false"])
def test_every_kind_of_block_is_computed(norm, feedforward, bias):
    words = f"norm={norm}", f"feedforward={feedforward}", f"bias={bias}", "tied=false"
    compare(build(*words), steps=3)
    compare(build(*words, dtype=torch.float32), steps=3, batch=11)


MORE = [
    ["positions.layout=interleaved", "positions.fraction=0.6", "attention.head_width=12"],
    ["soft_cap=1.5", "logit_cap=3"],
    ["positions.base=100,none", "sink=fixed", "window=none,6"],
    ["sink=learned", "norm_heads=true", "head_gains=true", "score.scale=0.4"],
    ["positions.scaling=linear", "attention.head_width=7", "attention.heads=3"],
    ["positions.scaling=yarn", "attention.head_width=40", "attention=grouped"],
    ["width=200", "vocabulary=70", "attention.heads=2", "feedforward=swiglu"],
]


@pytest.mark.parametrize("words", MORE, ids=" ".join)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_a_layer_may_ask_for_is_computed(words, dtype):
    compare(build(*words, dtype=dtype), padded=True)


@pytest.mark.parametrize("batch", [1, 3, 5, 9, 17, 33])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_any_number_of_rows_is_computed(batch, dtype):
    """Few rows are taken one by one, many in the lanes of vectors, some of which stay empty."""
    compare(build("attention=grouped", "tied=false", dtype=dtype), steps=4, batch=batch)


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(batch, threads, monkeypatch):
    monkeypatch.setattr(step, "WORK_PER_THREAD", 1)
    model = build("width=120", "feedforward=swiglu", "vocabulary=50")
    compare(model, steps=4, batch=batch, threads=threads)
    tokens = torch.arange(batch)[:, None]
    found = []
    for count in (1, threads):
        (cache, _), positions = read(model, batch=batch)
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            found.append(decoding.plan(model, cache)(tokens, positions))
        finally:
            torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["full", "ring"])
def test_a_window_is_a_window_in_either_cache(kind):
    compare(build("window=5"), kind=kind, steps=40, padded=True)
    compare(build("window=5"), kind=kind, steps=9, length=2)
    compare(build("window=1"), kind=kind, steps=6)


@torch.no_grad()
def test_pieces_and_steps_may_take_turns():
    """The cache is one: a plan reads on where the forward pass stopped, and the other way round."""
    model = build("window=6,none", "attention=grouped")
    (ours, theirs), positions = read(model)
    plan = decoding.plan(model, ours)
    for turn in range(4):
        piece = torch.full((2, 5), turn)
        every = positions + torch.arange(5)
        for cache in (ours, theirs):
            model(piece, positions=every, cache=cache)
        positions = positions + 5
        for _ in range(3):
            got = plan(piece[:, :1], positions)
            close(got, model(piece[:, :1], positions=positions, cache=theirs)[:, -1])
            positions = positions + 1


@torch.no_grad()
def test_a_cache_may_be_reset_for_other_texts():
    model = build()
    (ours, theirs), _ = read(model)
    plan = decoding.plan(model, ours)
    plan(torch.tensor([[1], [2]]), torch.tensor([[9], [9]]))
    tokens, positions = torch.arange(12).view(3, 4), torch.full((3, 1), 4)
    for cache in (ours, theirs):
        cache.reset()
        model(tokens, cache=cache)
    got = plan(tokens[:, :1], positions)
    close(got, model(tokens[:, :1], positions=positions, cache=theirs)[:, -1])
    with pytest.raises(ValueError, match="the cache holds 3 texts, and these are tokens of 2"):
        plan(tokens[:2, :1], positions[:2])
    for wrong in (-1, 10_000):
        with pytest.raises(ValueError, match="are not all from 0 to"):
            plan(tokens[:, :1], torch.full((3, 1), wrong))


@torch.no_grad()
def test_positions_of_another_shape_are_refused(unchecked_shapes):
    model = build()
    (cache, _), positions = read(model)
    plan = decoding.plan(model, cache)
    for wrong in (positions[:1], positions.float()):
        with pytest.raises(ValueError, match="each of the tokens"):
            plan(torch.tensor([[3], [4]]), wrong)


@torch.no_grad()
def test_weights_that_change_in_place_are_read_anew():
    model = build()
    (ours, theirs), positions = read(model)
    plan, tokens = decoding.plan(model, ours), torch.tensor([[3], [4]])
    for parameter in model.parameters():
        parameter.mul_(0.5)
    close(plan(tokens, positions), model(tokens, positions=positions, cache=theirs)[:, -1])


@torch.no_grad()
def test_scores_too_large_for_the_dtype_are_the_largest_number():
    model = build("positions=none", "score.scale=1000", dtype=torch.float32)
    for block in model.blocks:
        block.attention.project.weight[:48] *= 1e18  # products of them are finite, scores are not
    (ours, theirs), positions = read(model)
    plan, tokens = decoding.plan(model, ours), torch.tensor([[3], [4]])
    want = model(tokens, positions=positions, cache=theirs)[:, -1]
    assert want.isfinite().all()
    close(plan(tokens, positions), want)


@torch.no_grad()
def test_a_model_that_has_diverged_gives_no_numbers():
    model = build()
    (ours, _), positions = read(model)
    model.blocks[1].attention.project.weight[30] = torch.nan
    assert decoding.plan(model, ours)(torch.tensor([[3], [4]]), positions).isnan().all()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_what_is_not_standard_has_no_plan(name, beside):
    model = make(settings_of(name, *beside))
    (cache, _), _ = read(model)
    standard = name in PLANNED and not any(word.startswith("chunk") for word in beside)
    assert (decoding.why_not(model, cache) is None) == standard
    assert (decoding.plan(model, cache) is None) == (not standard)


@pytest.mark.parametrize(
    "word",
    [
        f"{kind}={option.name}"
        for kind in ("attention", "score", "positions")
        for option in registry.options(kind)
    ],
)
@torch.no_grad()
def test_every_option_is_planned_and_equal_or_has_a_reason(word):
    model = build(word, *(["positions=none"] if "delta" in word else []))
    (cache, _), _ = read(model)
    if decoding.why_not(model, cache) is None:
        compare(model, steps=3)


def hooked(model):
    model.blocks[0].attention.register_forward_hook(lambda *given: None)


def adapted(model):
    class Adapted(torch.nn.Linear):
        pass

    model.blocks[0].attention.merge.__class__ = Adapted


def training(model):
    model.blocks[0].drop.train()


CHANGES = {
    "blocks.0.attention has a hook": hooked,
    "blocks.0.attention.merge is a Adapted": adapted,
    "the model is in training mode": training,
    "embed.weight is torch.bfloat16": lambda model: model.bfloat16(),
    "norm.weight is torch.float32": lambda model: model.norm.float(),
    "the model has a hook": lambda model: setattr(model, "forward", lambda *given: None),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_model_that_somebody_changed_has_no_plan(reason):
    model = build()
    (cache, _), _ = read(model)
    assert decoding.plan(model, cache) is not None
    CHANGES[reason](model)
    assert decoding.why_not(model, cache) == reason


def test_no_cache_and_an_empty_one_have_no_plan():
    model = build()
    assert decoding.why_not(model, None) == "only transformers with a cache have one"
    assert decoding.why_not(model, model.new_cache()) == "the cache has read no token"
    (cache, _), _ = read(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert decoding.why_not(model, cache) == "autocast is on"
    assert isinstance(cache, Cache)


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """Whatever is loaded in the test is built for it, and forgotten afterwards."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    forget()
    yield
    forget()


def forget():
    native.library.cache_clear()
    native.why_unavailable.cache_clear()


@pytest.mark.parametrize("machine", [["-mavx2", "-mfma"], ["-O1", "-msse2"]], ids=str)
def test_every_instruction_set_gives_the_same(machine, monkeypatch, fresh_library):
    if platform.machine() != "x86_64":
        pytest.skip("these flags are for x86-64")
    monkeypatch.setattr(native, "MACHINES", (machine,))
    for dtype in (torch.float64, torch.float32):
        for batch in (1, 7):
            words = "feedforward=geglu", "norm=layer", "attention.head_width=9", "soft_cap=2"
            compare(build(*words, dtype=dtype), steps=3, batch=batch)


def test_without_a_compiler_there_is_no_plan(monkeypatch, fresh_library):
    monkeypatch.setenv("CC", "no-such-compiler")
    model = build()
    (cache, _), _ = read(model)
    assert decoding.plan(model, cache) is None
    assert "no C compiler" in decoding.why_not(model, cache)
