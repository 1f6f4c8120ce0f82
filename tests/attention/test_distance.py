"""Learned functions of distance: their formulas, gradients, and every way to read a text."""

import math

import pytest
import torch
from torch import nn

from attnlab import config
from attnlab.attention import distance
from attnlab.attention.distance import bucket
from attnlab.attention.positions import Shape, alibi_slopes
from attnlab.kernels import DistanceBias, Request, dispatch
from attnlab.models.transformer import TransformerSettings

SHAPE = Shape(width=32, heads=3, head_width=16, context=64)
SCHEMES = {
    "t5": ["positions=t5", "positions.buckets=6", "positions.max_distance=11"],
    "kerple": ["positions=kerple"],
    "kerple, power": ["positions=kerple", "positions.function=power"],
    "fire": ["positions=fire", "positions.threshold=9"],
}


def random(scheme):
    generator = torch.Generator().manual_seed(0)
    for parameter in scheme.double().parameters():
        nn.init.normal_(parameter, std=0.6, generator=generator)
    return scheme


def dense(scheme, time, keys, positions=None):
    """[h, t, k], as a request has it."""
    positions = torch.arange(keys - time, keys)[None] if positions is None else positions
    bias = scheme.bias(positions, keys)
    q, k = torch.zeros(1, 3, time, 2).double(), torch.zeros(1, 3, keys, 2).double()
    return Request(q=q, k=k, v=k, bias=bias).dense_bias()[0]


@pytest.mark.parametrize(
    ("buckets", "longest"), [(32, 128), (32, 4096), (7, 20), (2, 5), (64, 33), (256, 1000)]
)
def test_buckets_are_those_of_transformers(buckets, longest):
    """But for a distance with which a bucket begins: there float32 decides, and is not asked."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(2 * longest)
    theirs = t5.T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=buckets, max_distance=longest
    )
    exact = buckets // 2
    differ = 0
    for distance_, other in zip(distances.tolist(), theirs.tolist(), strict=True):
        mine = bucket(min(distance_, longest), buckets, longest)
        if mine != other:
            share = math.log(distance_ / exact) / math.log(longest / exact)
            place = share * (buckets - exact)
            assert abs(place - round(place)) < 1e-9 and mine == other + 1 == round(place) + exact
            differ += 1
    assert differ <= 3


def test_every_bucket_is_used_where_there_is_room():
    found = [bucket(n, 32, 128) for n in range(129)]
    assert sorted(set(found)) == list(range(32)) and found == sorted(found)


def test_t5_is_a_table_of_buckets():
    scheme = random(distance.T5(buckets=6, max_distance=11).build(SHAPE))
    found = dense(scheme, 5, 20)
    for head in range(3):
        for query in range(5):
            for key in range(20):
                place = bucket(min(max(15 + query - key, 0), 11), 6, 11)
                assert found[head, query, key] == scheme.table.weight[place, head]


@pytest.mark.parametrize("function", ["log", "power"])
def test_kerple_is_its_formula(function):
    scheme = random(distance.Kerple(function=function).build(SHAPE))
    found = dense(scheme, 4, 9)
    for head in range(3):
        scale, shape = (one[head].item() for one in (scheme.log_scale, scheme.shape))
        for query in range(4):
            for key in range(9):
                away = abs(5 + query - key)
                if function == "log":
                    wanted = -math.exp(scale) * math.log(1 + math.exp(shape) * away)
                else:
                    wanted = -math.exp(scale) * away ** (2 / (1 + math.exp(-shape)))
                assert found[head, query, key].item() == pytest.approx(wanted, rel=1e-12)


def test_the_power_of_kerple_begins_as_alibi():
    scheme = distance.Kerple(function="power").build(SHAPE).double()
    away = (torch.arange(4)[:, None] + 5 - torch.arange(9)).abs()
    torch.testing.assert_close(dense(scheme, 4, 9), -alibi_slopes(3)[:, None, None] * away.double())


def test_fire_is_its_formula():
    scheme = random(distance.Fire(hidden=5, threshold=3.0).build(SHAPE))
    nn.init.constant_(scheme.log_threshold, math.log(6.5))  # between the first query and the last
    c, threshold = math.exp(scheme.log_c.item()), math.exp(scheme.log_threshold.item())
    found = dense(scheme, 4, 9)
    for query in range(4):
        for key in range(9):
            at = 5 + query
            share = math.log(1 + c * abs(at - key)) / math.log(1 + c * max(at, threshold))
            units = (share * scheme.inner + scheme.shift).relu()
            torch.testing.assert_close(found[:, query, key], scheme.outer @ units)


def test_fire_begins_at_a_quarter_of_the_context():
    for settings, wanted in ((distance.Fire(), 16), (distance.Fire(threshold=3.0), 3)):
        begins = settings.build(SHAPE).log_threshold.exp().item()
        assert begins == pytest.approx(wanted)


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_are_those_of_finite_differences(name):
    settings = config.override(TransformerSettings(), SCHEMES[name]).positions
    scheme = random(settings.build(SHAPE))
    names = [name for name, _ in scheme.named_parameters()]
    at = torch.arange(3, 7)[None]

    def bias(*given):
        found = torch.func.functional_call(
            _Asked(scheme), {f"scheme.{n}": one for n, one in zip(names, given, strict=True)}, (at,)
        )
        return found.values if isinstance(found, DistanceBias) else found

    assert torch.autograd.gradcheck(bias, tuple(scheme.parameters()))


class _Asked(nn.Module):
    def __init__(self, scheme):
        super().__init__()
        self.scheme = scheme

    def forward(self, positions):
        return self.scheme.bias(positions, 7)


@pytest.mark.parametrize("path", ["native", "tiled"])
@pytest.mark.parametrize("name", ["t5", "kerple", "kerple, power"])
def test_fast_paths_learn_it_as_the_definition_does(name, path):
    scheme = random(config.override(TransformerSettings(), SCHEMES[name]).positions.build(SHAPE))
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 37, 16, dtype=torch.float64, generator=generator)
    found = []
    for one in ("reference", path):
        bias = scheme.bias(torch.arange(37)[None], 37)
        out = dispatch.attend(Request(q=q, k=k, v=v, window=13, bias=bias), one)
        found.append([out, *torch.autograd.grad(out.square().sum(), scheme.parameters())])
    for mine, wanted in zip(*found, strict=True):  # float64, sums in another order
        torch.testing.assert_close(mine, wanted, atol=1e-10, rtol=1e-10)


def build(*words):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=13, context=24, width=24, depth=2)
    model = config.override(settings, words).build().double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def text(length, batch=2):
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_rings_padding_and_pieces_are_read_as_the_whole(name):
    """Past the context, beside padding, and through a ring that holds the last keys only."""
    model, tokens = build(*SCHEMES[name], "window=7,none"), text(53)
    whole = model(tokens)
    padded = torch.cat((torch.zeros(2, 5, dtype=torch.long), tokens), dim=1)
    hidden = (torch.arange(58) < 5).expand(2, -1)
    positions = (torch.arange(58)[None] - 5).clamp(min=0)
    for sizes in ([1] * 58, [11, 1, 30, 2, 14], [58]):
        cache, steps, start = model.new_cache(), [], 0
        for size in sizes:
            piece = slice(start, start + size)
            given = {"positions": positions[:, piece], "key_padding": hidden[:, piece]}
            steps.append(model(padded[:, piece], cache=cache, **given))
            start += size
        torch.testing.assert_close(torch.cat(steps, 1)[:, 5:], whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_documents_in_a_row_are_read_as_if_alone(name):
    model, tokens = build(*SCHEMES[name]), text(41, batch=1)
    numbers = (torch.arange(41)[None] >= 19).long()
    got = model(tokens, segments=numbers)
    alone = torch.cat((model(tokens[:, :19]), model(tokens[:, 19:])), dim=1)
    torch.testing.assert_close(got, alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_it_tells_distances_apart(name):
    """Without positions the order of earlier tokens would not count in one layer."""
    model, tokens = build(*SCHEMES[name], "depth=1"), text(20, batch=1)
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    assert (model(tokens)[:, -1] - model(turned)[:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_half_precision_rounds_the_bias_and_not_the_distances(name):
    """In bfloat16 300 and 301 are one number; scores of 1 are then off by 1/256 and no more."""
    settings = config.override(TransformerSettings(), SCHEMES[name]).positions
    scheme = settings.build(SHAPE)
    exact, half = random(settings.build(SHAPE)), random(scheme).bfloat16()
    exact.load_state_dict({key: one.double() for key, one in half.state_dict().items()})
    wanted, found = dense(exact, 4, 301), dense(half, 4, 301)
    assert ((found - wanted).abs() <= 2**-8 * wanted.abs() + 2**-7).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t5", "buckets=1"], r"positions\.buckets is 1; some hold one distance, so use 2 or more"),
        (["t5", "max_distance=16"], r"max_distance is 16; the first 16 .* use 17 or more"),
        (["kerple", "function=logs"], r"function is 'logs'; did you mean 'log'"),
        (["fire", "threshold=0"], r"threshold is 0\.0; .* or none for a quarter of the context"),
        (["fire", "hidden=0"], r"hidden is 0; use 1 to 4096"),
    ],
)
def test_nonsense_is_refused(words, message):
    name, setting = words
    with pytest.raises(config.ConfigError, match=message):
        config.override(TransformerSettings(), [f"positions={name}", f"positions.{setting}"])
