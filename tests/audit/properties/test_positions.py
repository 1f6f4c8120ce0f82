"""Positions: every kind is told by name, mistakes in each are found, and nothing is left behind."""

import math

import pytest
import torch
from torch import nn

from attnlab import config
from attnlab.attention import mistakes, positions
from attnlab.attention.heads import Grouped
from attnlab.attention.positions import alibi_slopes
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.position_kinds import blind, wrong_slopes
from attnlab.audit.properties.positions import Positions
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings

HALF = {"positions": "rotary", "rope_layout": "half-split", "rope_base": 10_000.0}


def found(code, **declared):
    return Positions().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def transformer(scheme, **settings):
    torch.manual_seed(0)
    sizes = {"vocabulary": 31, "context": 64, "width": 32, "depth": 1}
    return TransformerSettings(positions=scheme, **(sizes | settings)).build()


def angles(t, pairs, base=10_000.0, dtype=torch.float64):
    speeds = (base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).to(dtype)
    return torch.arange(t).to(dtype)[:, None] * speeds


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def tables(t, d, dtype=torch.float64, interleaved=False):
    found = angles(t, d // 2, dtype=dtype).double()
    found = found.repeat_interleave(2, -1) if interleaved else torch.cat((found, found), -1)
    return found.cos(), found.sin()


def causal(q, k, v, bias=0.0):
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
    future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def rotary(for_queries, for_keys=None):
    """A function that turns half-split pairs by tables (cos, sin) made for (t, d)."""

    def attend(q, k, v):
        queries = for_queries(q.shape[2], q.shape[3])
        keys = (for_keys or for_queries)(k.shape[2], k.shape[3])
        queries, keys = ([one.to(q.dtype) for one in table] for table in (queries, keys))
        return causal(turned(q, *queries), turned(k, *keys), v)

    return attend


class Rotated(nn.Module):
    """The same within a module of vectors."""

    def __init__(self, make, context=None):
        super().__init__()
        self.width, self.heads, self.make, self.context = 32, 4, make, context
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        if self.context and x.shape[1] > self.context:
            raise ValueError("too long")
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        out = rotary(self.make)(q, k, v)
        return self.out(out.transpose(1, 2).flatten(2))


def biased(slopes):
    def attend(q, k, v):
        far = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return causal(q, k, v, -slopes(q.shape[1]).to(q)[:, None, None] * far)

    return attend


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (positions.NoPositions(), "none"),
        (positions.Learned(), "absolute"),
        (positions.Sinusoidal(), "absolute"),
        (positions.Alibi(), "alibi"),
        (positions.Rotary(), "rotary"),
        (positions.Rotary(layout="interleaved", base=500.0, fraction=0.5), "rotary"),
    ],
)
def test_our_own_schemes_are_told_and_pass_as_what_they_are(scheme, kind):
    model = transformer(scheme)
    finding = found(model, positions=kind)
    assert finding.verdict == "pass" and finding.measured["kind"] == kind
    assert found(model, positions="alibi" if kind == "rotary" else "rotary").verdict == "fail"


def test_layout_base_and_fraction_of_rotations_are_identified():
    scheme = positions.Rotary(layout="interleaved", base=500.0, fraction=0.5)
    model = transformer(scheme, attention=Grouped(), width=64)
    measured = found(model).measured
    assert measured["layout"] == "interleaved" and measured["fraction"] == 0.5
    assert measured["base"] == pytest.approx(500, rel=1e-6)
    right = {"rope_layout": "interleaved", "rope_base": 500.0, "rope_fraction": 0.5}
    assert found(model, **right).verdict == "pass"
    for wrong in ({"rope_layout": "half-split"}, {"rope_base": 1e4}, {"rope_fraction": 1.0}):
        assert found(model, **(right | wrong)).verdict == "fail"


def test_rotations_in_a_function_are_identified_without_a_look_inside():
    finding = found(rotary(tables), **HALF)
    assert finding.verdict == "pass" and finding.measured["base"] == pytest.approx(1e4)


def test_the_other_direction_is_as_good():
    assert found(rotary(lambda t, d: (tables(t, d)[0], -tables(t, d)[1])), **HALF).verdict == "pass"


@pytest.mark.parametrize("code", [rotary, Rotated])
def test_frequencies_of_one_layout_in_the_other_fail_even_undeclared(code):
    mixed = code(lambda t, d: tables(t, d, interleaved=True))
    for declared in ({}, {"positions": "rotary"}, {"positions": "relative"}):
        finding = found(mixed, **declared)
        assert finding.verdict == "fail" and "do not turn alike" in finding.detail


def test_queries_and_keys_that_turn_differently_fail():
    def standing(t, d):
        return torch.ones(t, d), torch.zeros(t, d)

    assert found(rotary(tables, standing)).verdict == "fail"
    assert found(rotary(lambda t, d: (tables(t, d)[0], -tables(t, d)[1]), tables)).verdict == "fail"


def test_the_known_mistakes_of_the_laboratory_fail():
    growing, by_head = transformer(mistakes.GrowingRotary()), transformer(mistakes.HeadRotary())
    assert "grow" in found(growing).detail and found(growing).verdict == "fail"
    assert found(by_head, positions="rotary").verdict == "fail"
    assert found(by_head).measured == {"kind": "none"}


@pytest.mark.parametrize("code", [rotary, Rotated])
def test_angles_in_a_half_precision_fail_and_those_in_float32_do_not(code):
    rounded = code(lambda t, d: tables(t, d, torch.bfloat16))
    assert "rounded" in found(rounded).detail and found(rounded).verdict == "fail"
    assert found(code(lambda t, d: tables(t, d, torch.float32))).verdict == "pass"


class Convolved(nn.Module):
    """A convolution, then rotary attention: the first tokens see less than the others."""

    def __init__(self, width=32, heads=4, dtype=torch.float64):
        super().__init__()
        self.width, self.heads, self.angles = width, heads, dtype
        self.convolution = nn.Conv1d(width, width, 3, padding=2)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, position_ids=None):
        length = x.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length)[None]
        x = self.convolution(x.mT)[..., :length].mT
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        far = int(position_ids.max()) + 1
        cos, sin = (
            one[position_ids][:, None].to(x.dtype)
            for one in tables(far, self.width // self.heads, self.angles)
        )
        q, k = (turned(one, cos, sin) for one in parts[:2])
        return causal(q, k, parts[2]).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("dtype", "verdict"), [("float64", "pass"), ("bfloat16", "fail")])
def test_the_first_tokens_may_differ_where_a_convolution_begins(dtype, verdict):
    torch.manual_seed(3)
    assert found(Convolved(dtype=getattr(torch, dtype))).verdict == verdict


def test_tables_in_a_half_precision_are_no_mistake():
    def coarse(t, d):
        return tuple(one.bfloat16().double() for one in tables(t, d))

    assert found(Rotated(coarse), **HALF).verdict == "pass"


def test_a_declared_precision_in_which_the_code_does_not_run_is_not_established():
    class Picky(Rotated):
        def forward(self, x):
            if x.dtype is torch.bfloat16:
                raise TypeError("not in bfloat16")
            return super().forward(x)

    assert found(Picky(tables), **HALF).verdict == "pass"
    with pytest.raises(CannotTell, match="TypeError: not in bfloat16"):
        found(Picky(tables), **HALF, dtype="bfloat16")


def placed(change):
    """Tables of positions that were changed."""

    def make(t, d):
        found = change(torch.arange(t))[:, None] * angles(2, d // 2)[1]
        found = torch.cat((found, found), -1)
        return found.cos(), found.sin()

    return make


@pytest.mark.parametrize("build", [rotary, Rotated])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda place: place % 3, "positions start again at 3:"),
        (lambda place: place % 32, "positions start again at 32:"),
        (lambda place: place % 128, "positions start again at 128:"),
        (lambda place: place.clamp(max=40), "positions stop at 40:"),
        (lambda place: place.clamp(max=126), "positions stop at 126:"),
        (lambda place: place.clamp(max=250), "positions stop before 300:"),
        (lambda place: place + 5 * (place > 60), "positions do not count on evenly"),
    ],
)
def test_positions_that_start_again_or_stop_are_found_and_named(build, change, sentence):
    finding = found(build(placed(change)), positions="rotary")
    assert finding.verdict == "fail" and sentence in finding.detail, finding.detail


@pytest.mark.parametrize("build", [rotary, Rotated])
@pytest.mark.parametrize(
    "change",
    [
        lambda place: place,
        lambda place: place / 4,
        lambda place: place + 7,
        lambda place: place * (1 if len(place) < 64 else 0.5),  # stretched in long texts
    ],
)
def test_positions_that_count_on_are_right_wherever_they_begin_and_however_far_apart(build, change):
    finding = found(build(placed(change)), positions="rotary")
    assert finding.verdict == "pass", finding.detail
    assert "scores of equal distances are equal in texts of up to 129" in finding.detail


def test_a_table_that_ends_is_right_up_to_its_end():
    finding = found(Rotated(placed(lambda place: place % 32), context=32), positions="rotary")
    assert finding.verdict == "pass" and "in texts of up to 31" in finding.detail, finding.detail


def test_code_for_short_texts_is_not_asked_for_long_ones():
    assert found(Rotated(tables, context=80), **HALF).verdict == "pass"


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12])
def test_published_slopes_are_accepted_for_every_number_of_heads(heads):
    assert wrong_slopes(tuple(alibi_slopes(heads).tolist())) == ""


def test_a_linear_bias_of_a_function_is_measured():
    finding = found(biased(alibi_slopes), positions="alibi")
    assert finding.verdict == "pass"
    assert finding.measured["slopes"] == pytest.approx(alibi_slopes(4).tolist())


@pytest.mark.parametrize(
    "slopes",
    [
        lambda heads: -alibi_slopes(heads),
        lambda heads: alibi_slopes(heads) * 4,
        lambda heads: torch.arange(1, heads + 1) / heads,
    ],
    ids=["sign", "from 1", "arithmetic"],
)
def test_wrong_signs_and_slopes_fail(slopes):
    assert found(biased(slopes), positions="alibi").verdict == "fail"


def test_a_bias_towards_what_is_far_fails_even_undeclared():
    assert found(biased(lambda heads: -alibi_slopes(heads))).verdict == "fail"


def test_pairs_that_turn_too_slowly_to_be_seen_are_counted():
    def slow(t, d):
        found = angles(t, d // 2, base=1e8).repeat(1, 2).float()
        return found.cos(), found.sin()

    code = rotary(slow)
    subject = subject_for(lambda q, k, v: code(q, k, v), {}, "code")
    subject = subject.in_dtype(torch.float32)
    contract = Contract(positions="rotary", rope_base=1e8, rope_fraction=1.0)
    assert Positions().examine(Probe(subject, contract)).verdict == "pass"


def test_a_bias_by_distance_of_another_kind_is_relative():
    def attend(q, k, v):
        far = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return causal(q, k, v, (far % 3).double())

    assert found(attend).measured == {"kind": "relative"}
    assert found(attend, positions="relative").verdict == "pass"
    assert found(attend, positions="alibi").verdict == "fail"


def test_what_is_compared_out_of_sight_is_not_guessed():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.width, self.project = 32, nn.Linear(32, 96)

        def forward(self, x):
            q, k, v = self.project(x).chunk(3, -1)
            near = (q[:, :, None] * k[:, None]).sum(-1) / 32**0.5
            far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            weights = (near - 0.1 * far).masked_fill(far < 0, -math.inf).softmax(-1)
            return (weights[..., None] * v[:, None]).sum(2)

    assert found(Hidden()).verdict == "cannot tell"
    assert found(Hidden(), positions="alibi").verdict == "cannot tell"


def test_code_without_positions_is_blind_to_order_and_other_code_is_not():
    for code, wanted in ((causal, True), (rotary(tables), False), (lambda q, k, v: v, False)):
        assert (
            blind(Probe(subject_for(lambda q, k, v, c=code: c(q, k, v), {}, "code"), Contract()))
            is wanted
        )


def test_a_temperature_by_the_querys_own_position_is_no_turning_and_no_rounding():
    def attend(q, k, v, turns=True):
        heat = 1 + 0.3 * torch.arange(q.shape[2]).to(q)[:, None].log1p()
        table = tables(q.shape[2], 8)
        return causal(*(turned(one, *table) if turns else one for one in (q * heat, k)), v)

    assert found(attend, positions="rotary").verdict == "pass"
    assert found(lambda q, k, v: attend(q, k, v, False)).measured == {"kind": "none"}


SCALED = {
    "linear": (["scaling=linear"], 4.0, "all rates divided by 4"),
    "yarn": (["scaling=yarn", "scaling.factor=32", "scaling.original=4096"], 32.0, "YaRN's ramp"),
    "none": ([], 1.0, "base 10000, 1 of"),
}


def scaled(kind):
    """Our own, with heads that are wide enough to see a ramp."""
    words = [f"positions.{one}" for one in SCALED[kind][0]]
    settings = TransformerSettings(vocabulary=31, context=64, width=64, depth=1)
    torch.manual_seed(0)
    return config.override(settings, ["attention.heads=2", "positions=rotary", *words]).build()


@pytest.mark.parametrize("kind", SCALED)
def test_the_scaling_of_our_own_rotations_is_named(kind):
    _, factor, named = SCALED[kind]
    finding = found(scaled(kind), rope_scaling=kind, rope_factor=factor, rope_base=1e4)
    assert finding.verdict == "pass" and named in finding.detail, finding.detail
    temperature = "1.3466 times as long" in finding.detail
    assert temperature == (kind == "yarn"), finding.detail


@pytest.mark.parametrize(("kind", "declared"), [("yarn", "linear"), ("linear", "none")])
def test_another_scaling_than_the_declared_one_fails(kind, declared):
    finding = found(scaled(kind), rope_scaling=declared)
    assert finding.verdict == "fail" and finding.example is not None


def test_the_rates_of_a_function_are_held_to_a_scaling():
    def slower(t, d):
        found = angles(t, d // 2) / 4
        found = torch.cat((found, found), -1)
        return found.cos(), found.sin()

    code = rotary(slower)
    finding = found(code, positions="rotary", rope_scaling="linear", rope_factor=4.0)
    assert finding.verdict == "pass" and "all rates divided by 4" in finding.detail
    finding = found(code, positions="rotary", rope_scaling="linear", rope_factor=2.0)
    assert finding.verdict == "fail" and "0.25 a position" in finding.detail


def test_a_scaling_of_rotations_that_are_not_there_fails():
    assert found(causal, rope_scaling="yarn").verdict == "fail"
