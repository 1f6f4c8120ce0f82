"""The transformer: decoding equals reading at once, for every option there is."""

from itertools import product

import pytest
import torch

from attnlab import config, registry
from attnlab.attention import cache as caches
from attnlab.attention import heads
from attnlab.kernels import Request, hardware, request
from attnlab.models.feedforward import KINDS
from attnlab.models.transformer import TransformerSettings

SCORES, SCHEMES, HEADS = (
    [option.name for option in registry.options(kind)]
    for kind in ("score", "positions", "attention")
)
SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=2)


def build(*words, dtype=torch.float64):
    torch.manual_seed(0)
    model = config.override(SMALL, words).build().to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # far from the start, where everything is flat
    return model


def text(batch=2, length=40, seed=0):
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(seed))


def decode(model, tokens, sizes, cache):
    steps, start, turn = [], 0, 0
    while start < tokens.shape[1]:
        size = sizes[turn % len(sizes)]
        steps.append(model(tokens[:, start : start + size], cache=cache))
        start, turn = start + size, turn + 1
    return torch.cat(steps, dim=1)


TOGETHER = [(*one, scheme) for one, scheme in product(heads.combinations(), SCHEMES)]


@pytest.mark.parametrize(("heads", "score", "scheme"), TOGETHER)
@torch.no_grad()
def test_decoding_through_the_caches_is_the_full_forward_pass(score, scheme, heads):
    words = (f"score={score}", f"positions={scheme}", f"attention={heads}")
    for window in ("none", "7", "5,none"):
        texts = [text(length=19, seed=n) for n in (0, 1)]  # past a ring of 7 keys, twice
        try:
            model = build(*words, f"window={window}")
        except ValueError as error:
            assert f"{heads} " in str(error) and ";" in str(error), "a reason and what to do"
            continue
        whole = [model(tokens) for tokens in texts]
        for kind in ("auto", "full"):
            cache = model.new_cache(kind)
            for sizes, tokens, wanted in zip(([1], [3, 1, 11]), texts, whole, strict=True):
                cache.reset()  # of what is left of the other text
                got = decode(model, tokens, sizes, cache)
                torch.testing.assert_close(got, wanted, atol=1e-9, rtol=0)


CHECKS = [
    (Request, "check"),
    (heads.AttentionOptions, "check"),
    (heads, "check_padding"),
    (heads, "check_bias"),
    (heads, "check_rotation"),
    (request, "check_padding"),
    (request, "_misfit"),
    (caches.LayerCache, "check"),
]


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
@torch.no_grad()
def test_decoding_checks_nothing_in_a_layer(scheme, monkeypatch):
    """What a person gave is checked once a call of the model, however deep it is."""
    counts = {}

    def counting(name, check):
        def counted(*args, **named):
            counts[name] += 1
            return check(*args, **named)

        return counted

    for where, name in CHECKS:
        full = f"{where.__name__}.{name}"
        monkeypatch.setattr(where, name, counting(full, getattr(where, name)))
    found = []
    for depth in (1, 5):
        model = build(f"positions={scheme}", f"depth={depth}", "window=9,none")
        tokens, padding = text(length=20), torch.arange(20)[None] < torch.tensor([[3], [0]])
        cache = model.new_cache()
        counts.update({f"{where.__name__}.{name}": 0 for where, name in CHECKS})
        model(tokens[:, :17], key_padding=padding[:, :17], cache=cache)
        for time in range(17, 20):
            model(tokens[:, time : time + 1], key_padding=padding[:, time : time + 1], cache=cache)
        found.append(dict(counts))
    assert found[0] == found[1]
    assert found[0]["AttentionOptions.check"] == found[0]["LayerCache.check"] == 4
    assert found[0]["Request.check"] == 0


def test_padding_of_another_shape_is_refused(unchecked_shapes):
    with pytest.raises(ValueError, match="key_padding has shape"):
        build()(text(), key_padding=torch.zeros(1, 40, dtype=torch.bool))


def test_a_cache_of_other_texts_is_refused():
    model = build("window=5,none")
    cache = model.new_cache()
    model(text(), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 texts, and these are tokens of 1"):
        model(text(batch=1, length=1), cache=cache)


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none", "sinusoidal"])
@torch.no_grad()
def test_decoding_goes_on_past_the_context(scheme):
    model, tokens = build(f"positions={scheme}", "window=5,none"), text(length=130)
    got = decode(model, tokens, [17, 1, 1], model.new_cache())
    torch.testing.assert_close(got, model(tokens), atol=1e-9, rtol=0)


@torch.no_grad()
def test_logits_after_the_last_token_alone_are_those_of_all():
    model, tokens = build("logit_cap=3"), text()
    alone, whole = model(tokens, last=True), model(tokens)
    assert alone.shape == (2, 1, 13)
    torch.testing.assert_close(alone, whole[:, -1:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_a_row_padded_on_the_left_is_read_as_if_alone(scheme):
    model, tokens = build(f"positions={scheme}", "window=9,none"), text(batch=1, length=20)
    padded = torch.cat((torch.zeros(1, 6, dtype=torch.long), tokens), dim=1)
    hidden = torch.arange(26)[None] < 6
    positions = (torch.arange(26)[None] - 6).clamp(min=0)
    got = model(padded, positions=positions, key_padding=hidden)
    torch.testing.assert_close(got[:, 6:], model(tokens), atol=1e-9, rtol=0)
    cache = model.new_cache()
    steps = [
        model(
            padded[:, t : t + 1],
            positions=positions[:, t : t + 1],
            key_padding=hidden[:, t : t + 1],
            cache=cache,
        )
        for t in range(26)
    ]
    torch.testing.assert_close(torch.cat(steps, 1)[:, 6:], model(tokens), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("score", "scheme"), list(product(SCORES, SCHEMES)))
@torch.no_grad()
def test_no_token_changes_what_came_before_it(score, scheme):
    model, tokens = build(f"score={score}", f"positions={scheme}"), text()
    changed = tokens.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 13
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :25], after[:, :25])
    assert not torch.equal(before[:, 25], after[:, 25])


@torch.no_grad()
def test_two_layers_of_a_window_reach_back_twice_as_far():
    model, tokens = build("window=4", "positions=none"), text(batch=1)
    changed = tokens.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 13
    moved = (model(tokens) - model(changed)).abs().amax(-1)[0].nonzero().flatten().tolist()
    assert moved == list(range(10, 17))  # 3 back in each of 2 layers, and itself


def test_the_pattern_of_windows_repeats():
    settings = config.override(SMALL, ["depth=8", "window=16,16,16,none"])
    windows = [block.attention.window for block in settings.build().blocks]
    assert windows == [16, 16, 16, None] * 2


@pytest.mark.parametrize("norm", ["layer", "rms", "unit"])
@pytest.mark.parametrize("feedforward", KINDS)
@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_every_kind_of_block_trains(norm, feedforward, bias, tied):
    words = [f"norm={norm}", f"feedforward={feedforward}", f"bias={bias}", f"tied={tied}"]
    torch.manual_seed(0)
    model = config.override(SMALL, words).build()
    assert (model.head.weight is model.embed.weight) == (tied == "true")
    if norm == "unit":
        assert not any("norm" in name for name, _ in model.named_parameters())
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert bool(biases) == (bias == "true")
    optimizer, tokens = torch.optim.Adam(model.parameters(), 1e-2), text()

    def loss():
        return torch.nn.functional.cross_entropy(
            model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )

    first = loss()
    for _ in range(30):
        optimizer.zero_grad()
        now = loss()
        now.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert abs(first - torch.log(torch.tensor(13.0))) < 0.1  # at the start it knows nothing
    assert loss() < first - 1  # 40 tokens of 2 texts are soon known by heart


PLACES = {  # where the norms stand, as lines that a paper would print
    "norm_place=before": lambda x, n, a, f: (x := x + a(n[0](x))) + f(n[2](x)),
    "norm_place=after": lambda x, n, a, f: (x := x + n[1](a(x))) + n[3](f(x)),
    "norm_place=both": lambda x, n, a, f: (x := x + n[1](a(n[0](x)))) + n[3](f(n[2](x))),
    "parallel=true": lambda x, n, a, f: x + a(n[0](x)) + f(n[2](x)),
    "parallel=true norm_place=both": lambda x, n, a, f: x + n[1](a(n[0](x))) + n[3](f(n[2](x))),
}


@pytest.mark.parametrize("words", PLACES)
@torch.no_grad()
def test_norms_stand_where_they_are_asked_for(words):
    block = build(*words.split()).blocks[0]
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    norms = [
        block.attention_norm,
        block.attended_norm,
        block.feedforward_norm,
        block.forwarded_norm,
    ]
    options = heads.AttentionOptions()
    wanted = PLACES[words](x, norms, block.attention, block.feedforward)
    torch.testing.assert_close(block(x, options), wanted)


@torch.no_grad()
def test_a_factor_of_token_vectors_leaves_the_output_layer_alone():
    plain, scaled = build(), build("embedding_scale=2.5")
    scaled.embed.weight[:] = plain.embed.weight / 2.5
    scaled.head.weight = plain.head.weight
    torch.testing.assert_close(scaled(text()), plain(text()))


@torch.no_grad()
def test_a_factor_of_scores_is_a_factor_of_queries():
    plain, scaled = build("attention.heads=4"), build("score.scale=0.7")
    for block in scaled.blocks:
        block.attention.project.weight[:24] /= 0.7 * 6**0.5
    torch.testing.assert_close(scaled(text()), plain(text()))


@pytest.mark.parametrize(("bias", "qkv"), [("false", "true"), ("true", "false")])
def test_biases_of_queries_keys_and_values_are_a_choice_of_their_own(bias, qkv):
    attention = build(f"bias={bias}", f"qkv_bias={qkv}").blocks[0].attention
    assert (attention.project.bias is not None) == (qkv == "true")
    assert (attention.merge.bias is not None) == (bias == "true")


@pytest.mark.parametrize("offset", ["false", "true"])
@torch.no_grad()
def test_gains_of_heads_are_those_of_all_heads_alike(offset):
    words = ("norm_heads=true", f"norm_offset={offset}", "attention=grouped")
    plain, gained = (
        build(*words, f"head_gains={given}").blocks[0].attention for given in ("false", "true")
    )
    queries, keys = gained.gains
    one = 1.0 if offset == "true" else 0.0
    x = torch.randn(2, 9, gained.project.out_features, dtype=torch.float64)
    wanted = [part * gain for part, gain in zip(plain._split(x), (queries, keys), strict=False)]
    for got, scaled, part in zip(gained._split(x), wanted, plain._split(x), strict=False):
        torch.testing.assert_close(got, scaled + one * part)


@pytest.mark.parametrize(("kind", "score"), list(product(HEADS, SCORES)))
def test_an_attention_that_stands_for_the_score_refuses_any_other(kind, score):
    words = [f"attention={kind}", f"score={score}", "positions=none"]
    if (kind, score) in heads.combinations() or score == "scaled-dot":
        assert build(*words)
    else:
        with pytest.raises(ValueError, match=f"model.score={score} would not reach it"):
            build(*words)


@pytest.mark.parametrize("heads", ["multi-head", "grouped", "multi-query"])
def test_normed_heads_do_not_feel_the_size_of_what_they_compare(heads):
    """q and k scaled by any number give the same attention; without the norm they do not."""
    for words, same in ((["norm_heads=true"], True), ([], False)):
        attend = build(f"attention={heads}", *words).blocks[0].attention
        x = torch.randn(1, 9, 24, dtype=torch.float64)
        before = attend(x)
        compared = (attend.heads + attend.kv_heads) * attend.head_width
        with torch.no_grad():
            attend.project.weight[:compared] *= 7
        assert torch.allclose(attend(x), before, atol=1e-9) == same


def test_rotations_from_the_table_are_those_computed():
    """Also past the context, where the table grows, and after inference, which leaves no trace."""
    model = build("positions=rotary", "context=8").float()
    scheme = model.positions
    with torch.inference_mode():
        model(text(length=20))
    model(text(length=20)).sum().backward()
    for start, stop in ((0, 8), (3, 40), (17, 18)):
        table = scheme.rotation_of_span(start, stop, torch.device("cpu"), torch.float32)
        computed = scheme.rotation(torch.arange(start, stop)[None], torch.float32)
        assert torch.equal(table.cos, computed.cos) and torch.equal(table.sin, computed.sin)
    half = scheme.rotation_of_span(0, 5, torch.device("cpu"), torch.bfloat16)
    assert half.cos.dtype == torch.float32


def test_the_course_model_has_the_published_size():
    """4 layers, 8 heads, width 256, vocabulary 256, block 128: 3,323,392 with learned positions."""
    words = ["width=256", "depth=4", "context=128", "vocabulary=256", "attention.heads=8"]
    words += ["norm=layer", "bias=true", "tied=false", "feedforward=gelu"]
    sizes = {}
    for scheme in ("learned", "rotary"):
        settings = config.override(SMALL, [*words, f"positions={scheme}"])
        sizes[scheme] = sum(p.numel() for p in settings.build().parameters())
    assert sizes == {"learned": 3_323_392, "rotary": 3_290_624}


def test_more_tokens_than_learned_positions_are_refused():
    model = build("positions=learned")
    with pytest.raises(ValueError, match="49 tokens are more than the 48 learned positions"):
        model(text(length=49))
    cache = model.new_cache()
    model(text(length=48), cache=cache)
    with pytest.raises(ValueError, match="49 tokens are more than"):
        model(text(length=1), cache=cache)


def test_bfloat16_where_it_would_crash_is_an_error(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_multiplies", lambda name: False)
    with pytest.raises(ValueError, match="bfloat16 products do not run on this CPU"):
        build(dtype=torch.bfloat16)(text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["width=25"], "width 25 does not divide into 4 heads"),
        (["width=1000000000000"], "width is 1000000000000; use 1 to"),
        (["depth=0"], "depth is 0"),
        (
            ["window=4,0"],
            "window has 0; it counts the keys .* so use 1 or more, or none for all keys",
        ),
        (["window="], "window is empty; give one or more"),
        (["dropout=1"], "dropout is 1.0; it is a probability, so use 0 to less than 1"),
        (["norm=batch"], "norm is 'batch'"),
        (["expansion=0"], "expansion is 0.0; use more than 0 and at most 64, such as 4.0"),
        (["head_gains=true"], "head_gains.*no query or key is normed; set norm_heads=true"),
        (["norm_offset=true", "norm=layer"], "norm_offset.*it is of RMS-norms; use norm=rms"),
        (
            ["parallel=true", "norm_place=after"],
            "parallel.*no norm before both; use norm_place=before",
        ),
        (["norm_epsilon=0"], "norm_epsilon is 0.0; .* use more than 0"),
        (["score.scale=-1"], "scale is -1.0; scores are multiplied by it"),
        (["embedding_scale=0"], "embedding_scale is 0.0; token vectors are multiplied by it"),
    ],
)
def test_nonsense_is_refused(words, message):
    with pytest.raises(config.ConfigError, match=message):
        config.override(SMALL, words)


def test_a_ring_cache_is_refused_where_there_is_no_window():
    with pytest.raises(ValueError, match="a ring cache needs a layer with a window"):
        build("window=5,none").new_cache("ring")


@pytest.mark.parametrize(("initial", "part"), [("deep", 1 / 4), ("flat", 1)])
def test_what_joins_the_stream_begins_smaller_unless_all_begin_alike(initial, part):
    torch.manual_seed(0)
    words = ["width=96", "depth=8", f"initial={initial}"]
    weights = dict(config.override(SMALL, words).build().named_parameters())
    for name, weight in weights.items():
        if name.endswith(("merge.weight", "down.weight")):
            assert weight.std().item() == pytest.approx(0.02 * part, rel=0.05), name
        elif weight.ndim == 2:
            assert weight.std().item() == pytest.approx(0.02, rel=0.05), name
