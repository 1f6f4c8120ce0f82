"""Rotary scaling: the formulas of transformers, and decoding as without it."""

import math

import pytest
import torch

from attnlab import config, registry
from attnlab.attention import rotary_scaling as scalings
from attnlab.attention.positions import Rotary, Shape
from attnlab.config import ConfigError
from attnlab.kernels.rotary import frequencies
from attnlab.models.transformer import TransformerSettings

SCALINGS = [option.name for option in registry.options("scaling")]
# Theirs are computed in float32: a power of the base, rounded in its exponent, is off by as many
# roundings as the base has in its logarithm, at most 14. On a ramp the rounding of the unscaled
# part counts as often as the scaled part is smaller: by the factor.
FLOAT32 = 3e-6
RAMP = 2e-7
BASES, WIDTHS = (10_000.0, 1_000_000.0), (16, 128)


def theirs(kind, width, base, *, context=4096, length=None, **parameters):
    """Rates and factor of cos and sin, as transformers has them."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    given = {"rope_type": kind, "rope_theta": base, **parameters}
    settings = LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=context,
        rope_parameters=given,
    )
    rates, factor = rope.ROPE_INIT_FUNCTIONS[kind](settings, "cpu", seq_len=length)
    return rates.double(), factor


def ours(settings, width, base, context=4096):
    shape = Shape(width=4 * width, heads=4, head_width=width, context=context)
    scheme = Rotary(base=base, scaling=settings).build(shape)
    return scheme.frequencies(torch.device("cpu"))


def same(found, wanted, ramp=0.0):
    tolerance = FLOAT32 + RAMP * ramp
    torch.testing.assert_close(found.rates, wanted[0], rtol=tolerance, atol=0)
    assert found.length == pytest.approx(wanted[1], rel=1e-12)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor", [1.0, 1.7, 40.0])
class TestFormulasAreThoseOfTransformers:
    def test_linear(self, base, width, factor):
        found = ours(scalings.Linear(factor=factor), width, base)
        same(found, theirs("linear", width, base, factor=factor))

    def test_ntk_is_dynamic_scaling_at_one_length(self, base, width, factor):
        """Theirs grows with the text; at this length it has the same base."""
        found = ours(scalings.Ntk(factor=factor * 12_288 / 4096 - (factor - 1)), width, base)
        same(found, theirs("dynamic", width, base, factor=factor, length=12_288))

    @pytest.mark.parametrize("truncate", [True, False])
    @pytest.mark.parametrize(
        ("original", "fast", "slow"), [(4096, 32.0, 1.0), (131_072, 24.0, 2.0), (512, 6.5, 0.3)]
    )
    def test_yarn(self, base, width, factor, truncate, original, fast, slow):
        settings = scalings.Yarn(
            factor=factor, original=original, fast=fast, slow=slow, truncate=truncate
        )
        given = {"beta_fast": fast, "beta_slow": slow, "truncate": truncate}
        given["original_max_position_embeddings"] = original
        wanted = theirs("yarn", width, base, factor=factor, **given)
        same(ours(settings, width, base), wanted, ramp=factor)

    def test_llama3(self, base, width, factor):
        for original, low, high in ((8192, 1.0, 4.0), (300, 0.4, 9.0)):
            settings = scalings.Llama3(factor=factor, original=original, low=low, high=high)
            wanted = theirs(
                *("llama3", width, base),
                factor=factor,
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_position_embeddings=original,
            )
            same(ours(settings, width, base), wanted, ramp=factor)

    def test_longrope(self, base, width, factor):
        """By length of the text theirs, by the model's context ours."""
        short = tuple(1 + n / 7 for n in range(width // 2))
        long = tuple(1 + n * n / 5 for n in range(width // 2))
        given = {"short_factor": short, "long_factor": long}
        given["original_max_position_embeddings"] = 4096
        settings = scalings.LongRope(short=short, long=long, original=4096)
        context = round(4096 * factor)
        wanted = theirs("longrope", width, base, context=context, length=context, **given)
        same(ours(settings, width, base, context), wanted)

    def test_proportional(self, base, width, factor):
        for turning in (0.25, 0.3, 1.0):
            given = {"partial_rotary_factor": turning, "factor": factor}
            found = ours(scalings.Proportional(turning=turning, factor=factor), width, base)
            same(found, theirs("proportional", width, base, **given))


def test_an_attention_factor_is_taken_as_it_is():
    given = {"original_max_position_embeddings": 1024, "attention_factor": 1.3, "factor": 4.0}
    found = ours(scalings.Yarn(factor=4.0, original=1024, attention_factor=1.3), 64, 1e4)
    same(found, theirs("yarn", 64, 1e4, **given))
    assert ours(scalings.LongRope(attention_factor=1.3), 64, 1e4).length == 1.3


def test_the_original_context_is_the_models_divided_by_the_factor():
    for name in ("yarn", "llama3"):
        make = registry.load("scaling", name)
        assert torch.equal(
            ours(make(factor=4.0), 64, 1e4, context=8192).rates,
            ours(make(factor=4.0, original=2048), 64, 1e4, context=8192).rates,
        )


@pytest.mark.parametrize(("original", "scaled"), [(5, 1), (1 << 40, 0)])
def test_yarn_scales_all_pairs_or_none_where_all_are_slow_or_fast(original, scaled):
    """Of contexts in which no pair turns once transformers leaves all but the first as they are."""
    found = ours(scalings.Yarn(factor=4.0, original=original), 64, 1e4).rates[1:]
    plain = frequencies(32, 1e4)[1:]
    torch.testing.assert_close(found, plain / 4**scaled)


@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "llama3", "longrope"])
def test_a_factor_of_one_changes_nothing(name):
    settings = registry.load("scaling", name)
    found = ours(settings() if name == "longrope" else settings(factor=1.0), 64, 1e4)
    torch.testing.assert_close(found.rates, frequencies(32, 1e4), rtol=1e-15, atol=0)
    assert found.length == 1


@pytest.mark.parametrize("name", SCALINGS)
def test_rates_never_grow(name):
    """From pair to pair, nor by the scaling."""
    found = ours(registry.load("scaling", name)(), 64, 1e4)
    assert (found.rates.diff() <= 0).all()
    assert (found.rates <= frequencies(32, 1e4) * (1 + 1e-15)).all()


def build(*words):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=13, context=24, width=64, depth=3)
    model = config.override(settings, words).build().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("layers", ["", "10000,none,500"])
@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_decoding_is_the_full_forward_pass_past_every_context(name, layers):
    """A cache holds keys that were turned long ago: rates must not have changed meanwhile."""
    words = [f"positions.base={layers}"] if layers else []
    if layers and name != "none":
        words.append("positions.scaled=true,false")
    model = build(f"positions.scaling={name}", "window=7,none", *words)
    tokens = torch.randint(13, (2, 61), generator=torch.Generator().manual_seed(0))
    for sizes in ([1] * 61, [5, 23, 30, 3]):
        cache = model.new_cache()
        steps = [model(part, cache=cache) for part in tokens.split(sizes, dim=1)]
        torch.testing.assert_close(torch.cat(steps, 1), model(tokens), atol=1e-9, rtol=0)
    padded = torch.cat((torch.zeros(2, 4, dtype=torch.long), tokens), dim=1)
    positions = (torch.arange(65)[None] - 4).clamp(min=0)
    hidden = (torch.arange(65)[None] < 4).expand(2, -1)
    got = model(padded, positions=positions, key_padding=hidden)[:, 4:]
    torch.testing.assert_close(got, model(tokens), atol=1e-9, rtol=0)


@torch.no_grad()
def test_every_scaling_but_none_changes_what_a_model_computes():
    tokens = torch.randint(13, (1, 24), generator=torch.Generator().manual_seed(0))
    plain = build()(tokens)
    for name in SCALINGS:
        words = {"longrope": ["positions.scaling.short=3"]}.get(name, [])
        found = build(f"positions.scaling={name}", *words)(tokens)
        assert torch.equal(found, plain) == (name == "none"), name


def test_scores_grow_by_the_square_of_the_attention_factor():
    shape = Shape(width=32, heads=2, head_width=16, context=64)
    at = torch.arange(9)[None]
    length = 0.1 * math.log(4) + 1
    by = Rotary(scaling=scalings.Yarn(factor=4.0)).build(shape).rotation(at, torch.float64)
    norm = by.cos**2 + by.sin**2
    torch.testing.assert_close(norm, torch.full_like(norm, length**2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["linear", "factor=0.5"], r"scaling\.factor is 0\.5; rates are divided by it, so use 1"),
        (["yarn", "fast=2", "slow=2"], r"scaling\.fast is 2\.0; use more than scaling\.slow, 2\.0"),
        (["llama3", "low=5"], r"scaling\.high is 4\.0; use more than scaling\.low, 5\.0"),
        (["yarn", "original=0"], r"scaling\.original is 0; use 1 or more, or none for the model's"),
        (["longrope", "long=1,0"], r"scaling\.long has 0\.0; rates are divided by it"),
        (["longrope", "short=1,2,3"], r"scaling\.short has 3 factors, and 8 pairs turn"),
        (["proportional", "turning=0.1"], r"turning 0\.1 of 8 pairs is less than one"),
        (["proportional", "turning=2"], r"scaling\.turning is 2\.0; it is a part of the pairs"),
        (["yarm"], "scaling: unknown scaling 'yarm'; did you mean 'yarn'"),
    ],
)
def test_nonsense_is_refused(words, message):
    name, *settings = words
    words = [f"positions.scaling={name}", *(f"positions.scaling.{word}" for word in settings)]
    with pytest.raises((ConfigError, ValueError), match=message):
        config.override(TransformerSettings(width=64), words).build()


def test_a_scaling_that_needs_more_of_the_rotation_says_what():
    with pytest.raises(
        ValueError, match=r"positions\.base 0\.5 with scaling=yarn: rates must fall"
    ):
        ours(scalings.Yarn(), 64, 0.5)
    with pytest.raises(ValueError, match="keeps the rate of the first pair and divides that of"):
        ours(scalings.Ntk(), 2, 1e4)
