"""Positions by layer: bases, layers without rotation, and the temperature of their queries."""

import pytest
import torch

from attnlab import config
from attnlab.attention.heads import AttentionOptions, HeadedAttention, Layer, MultiHead
from attnlab.attention.positions import LayeredPositions, Rotary, RotaryPositions, Shape
from attnlab.attention.rotary_scaling import Linear
from attnlab.attention.scores import ScaledDot
from attnlab.models.transformer import TransformerSettings

SHAPE = Shape(width=32, heads=2, head_width=16, context=64)
T = torch.arange(9)[None]


def rates(scheme):
    return scheme.frequencies(torch.device("cpu")).rates


def of_layers(settings, count):
    scheme = settings.build(SHAPE)
    every = list(scheme.of_layers())
    return [every[scheme.number(layer)] for layer in range(count)]


def build(*words):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=13, context=48, width=24, depth=4)
    model = config.override(settings, words).build().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def text(length=40, batch=2):
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(0))


def test_one_base_is_a_single_scheme():
    for base in (500.0, (500.0,), (500.0, 500.0)):
        assert isinstance(Rotary(base=base).build(SHAPE), RotaryPositions)


def test_a_pattern_of_bases_repeats_and_each_is_made_once():
    scheme = Rotary(base=(1e4, None, 1e6, 1e4)).build(SHAPE)
    assert isinstance(scheme, LayeredPositions) and len(list(scheme.of_layers())) == 3
    layers = of_layers(scheme.schemes[0].settings, 9)
    bases = [getattr(one, "base", None) for one in layers]
    assert bases == [1e4, None, 1e6, 1e4] * 2 + [1e4]
    assert layers[1].rotation(T, torch.float32) is None


def test_scaling_reaches_the_layers_that_are_scaled():
    """Gemma 3: five local layers as they are, and a global one with positions / 8."""
    from attnlab.kernels.rotary import frequencies

    local, large = (1e4,) * 5, (1e6,)
    settings = Rotary(base=local + large, scaling=Linear(factor=8.0), scaled=(False,) * 5 + (True,))
    layers = of_layers(settings, 12)
    for layer, scheme in enumerate(layers):
        wanted = frequencies(8, 1e6) / 8 if layer % 6 == 5 else frequencies(8, 1e4)
        assert torch.equal(rates(scheme), wanted)


def test_layers_of_gemma_3_turn_as_those_of_transformers():
    gemma = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    from transformers import Gemma3TextConfig

    theirs = gemma.Gemma3RotaryEmbedding(
        Gemma3TextConfig(
            hidden_size=32,
            num_attention_heads=2,
            head_dim=16,
            layer_types=["sliding_attention", "full_attention"],
            num_hidden_layers=2,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        )
    )
    settings = Rotary(base=(1e4, 1e6), scaling=Linear(factor=8.0), scaled=(False, True))
    kinds = ("sliding_attention", "full_attention")
    for scheme, kind in zip(of_layers(settings, 2), kinds, strict=True):
        cos, sin = theirs(torch.zeros(1, 9, 32), T, kind)
        found = scheme.rotation(T, torch.float32)
        for mine, other in ((found.cos, cos), (found.sin, sin)):  # float32: angles up to 9
            torch.testing.assert_close(mine[:, 0], other[..., :8], atol=2e-6, rtol=0)


PATTERNS = [
    ("10000,100", "true"),
    ("10000,10000,10000,none", "true"),
    ("none,500", "false,true,true"),
]


@pytest.mark.parametrize(("bases", "scaled"), PATTERNS)
@pytest.mark.parametrize("temperature", ["none", "0.7"])
@torch.no_grad()
def test_decoding_is_the_full_forward_pass(bases, scaled, temperature):
    if "none" not in bases and temperature != "none":
        return
    words = [f"positions.base={bases}", f"positions.scaled={scaled}", "positions.scaling=linear"]
    if temperature != "none":
        words += [f"positions.temperature={temperature}", "positions.temperature_step=5"]
    model, tokens = build(*words, "window=6,none,none"), text()
    whole = model(tokens)
    for sizes in ([1] * 40, [17, 1, 3, 19]):
        cache = model.new_cache()
        steps = [model(part, cache=cache) for part in tokens.split(sizes, dim=1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-9, rtol=0)
    padded = torch.cat((torch.zeros(2, 5, dtype=torch.long), tokens), dim=1)
    hidden = (torch.arange(45) < 5).expand(2, -1)
    positions = (torch.arange(45)[None] - 5).clamp(min=0)
    cache, steps = model.new_cache(), []
    for piece in (slice(0, 7), slice(7, 8), slice(8, 45)):
        given = {"positions": positions[:, piece], "key_padding": hidden[:, piece]}
        steps.append(model(padded[:, piece], cache=cache, **given))
    torch.testing.assert_close(torch.cat(steps, 1)[:, 5:], whole, atol=1e-9, rtol=0)
    packed = torch.cat((tokens[:1, :23], tokens[:1, :17]), dim=1)
    numbers = (torch.arange(40)[None] >= 23).long()
    got = model(packed, segments=numbers)
    torch.testing.assert_close(got[:, :23], whole[:1, :23], atol=1e-9, rtol=0)
    torch.testing.assert_close(got[:, 23:], whole[:1, :17], atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_model_gives_each_layer_its_own_rotation():
    model = build("positions.base=10000,none,500", "positions.temperature=0.5")
    given = []
    for block in model.blocks:
        block.attention.register_forward_pre_hook(
            lambda module, positional, named: given.append(named["options"]), with_kwargs=True
        )
    model(text())
    at = torch.arange(40)[None]
    for options, scheme in zip(given, of_layers(model.settings.positions, 4), strict=True):
        wanted = scheme.rotation(at, torch.float64)
        assert (options.rotary is None) == (wanted is None) != (options.temperature is None)
        if wanted is not None:  # of another width of heads: the first pair turns alike
            assert torch.equal(options.rotary.cos[..., 0], wanted.cos[..., 0])
    turned = [options.rotary.cos[..., 1] for options in given if options.rotary is not None]
    assert not torch.equal(turned[0], turned[1]) and torch.equal(turned[0], turned[2])


@torch.no_grad()
def test_a_layer_without_rotation_does_not_see_distances():
    """One layer: the order of earlier tokens does not count; with rotation it does."""
    tokens = text(batch=1)
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    for bases, same in (("none,10000", True), ("10000,none", False)):
        model = build(f"positions.base={bases}", "depth=1")
        assert torch.allclose(model(tokens)[:, -1], model(turned)[:, -1], atol=1e-9) == same


def test_queries_of_llama_4_are_those_of_transformers():
    """Of a layer without rotation, past three steps of the temperature."""
    llama = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    from transformers import Llama4TextConfig

    settings = Llama4TextConfig(
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_hidden_layers=1,
        no_rope_layers=[0],
        floor_scale=6,
        attn_scale=0.3,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    theirs = llama.Llama4TextAttention(settings, 0).double().eval()
    score = ScaledDot().build(2, 16)
    ours = HeadedAttention(MultiHead(heads=2), score, Layer(width=32)).double()
    with torch.no_grad():
        parts = (theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight)
        ours.project.weight.copy_(torch.cat(parts))
        ours.merge.weight.copy_(theirs.o_proj.weight)
    scheme = of_layers(Rotary(base=(1e4, None), temperature=0.3, temperature_step=6), 2)[1]
    x, at = torch.randn(2, 23, 32, dtype=torch.float64), torch.arange(23)[None]
    mask = torch.full((23, 23), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    wanted = theirs(5 * x, None, mask)[0]
    options = AttentionOptions(temperature=scheme.temperature(at, torch.float64))
    # theirs rounds the temperature to float32
    torch.testing.assert_close(ours(5 * x, options=options), wanted, atol=1e-6, rtol=0)
    plain = ours(5 * x, options=AttentionOptions())
    assert (plain - wanted)[:, :5].abs().max() < 1e-6 < 1e-3 < (plain - wanted)[:, 5:].abs().max()


def test_settings_with_lists_are_saved_and_read():
    words = ["positions.base=10000,none", "positions.scaled=false,true", "positions.scaling=yarn"]
    settings = config.override(TransformerSettings(), words)
    assert settings.positions.base == (1e4, None)
    plain = config.to_dict(settings)
    assert plain["positions"]["base"] == [1e4, None]
    assert plain["positions"]["scaling"]["name"] == "yarn"
    assert config.from_dict(TransformerSettings, plain) == settings
    again = config.override(TransformerSettings(), config.to_overrides(plain))
    assert again == settings


def test_settings_from_before_there_were_lists_mean_the_same():
    old = {"name": "rotary", "base": 500.0, "fraction": 1.0, "layout": "interleaved"}
    found = config.from_dict(TransformerSettings, {"positions": old}).positions
    assert found == Rotary(base=500.0, layout="interleaved")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base=none"], r"positions\.base is \(None,\); no layer would rotate; use positions=none"),
        (["base="], r"positions\.base is \[\]; no|positions\.base is empty"),
        (["base=10000,0"], r"has 0\.0; .* more than 0, or none for a layer without rotation"),
        (["scaled=false", "scaling=yarn"], r"no layer would be scaled; use positions\.scaling=non"),
        (["temperature=0.1"], r"it is for layers without rotation, and each has one"),
        (["temperature=0", "base=1,none"], r"temperature is 0\.0; queries grow by it"),
        (
            ["scaled=false,true"],
            r"positions.scaled is .*; there is no scaling; give positions.scal",
        ),
        (["temperature_step=9"], r"temperature_step is 9; there is no positions.temperature"),
        (["temperature_step=0"], r"temperature_step is 0; it counts positions, so use 1 or more"),
    ],
)
def test_nonsense_is_refused(words, message):
    with pytest.raises(config.ConfigError, match=message):
        config.override(TransformerSettings(), [f"positions.{word}" for word in words])
