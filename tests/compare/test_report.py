"""What is said follows from the numbers."""

import dataclasses
import math

import pytest

from attnlab.compare.analysis import (
    Analysis,
    Conditions,
    Cost,
    TrainingResult,
    VariantResult,
    answer,
    summary,
)
from attnlab.compare.parse import ComparisonSettings, Search
from attnlab.compare.report import TIMES, findings
from attnlab.experiments.verdicts import ALLOWANCE, Stretches

TIMED = ("step_ms", "fastest_ms", "slowest_ms")
STEP = {"step_ms": 10.0, "fastest_ms": 9.0, "slowest_ms": 11.0, "tokens_per_second": 1.0}


def trained(*losses, ending="finished"):
    rows = [[step, loss] for step, loss in zip((5, 10, 15), losses, strict=False)]
    return TrainingResult(ending=ending, why="", evaluations=rows, curve=rows)


def with_text(sums):
    """Ends at a loss of 9 by the evaluation, and at these by stretches of 100 tokens."""
    return dataclasses.replace(trained(9.0), text=Stretches(sums, [100.0] * len(sums)))


def variant(label, ends, cache=100, step_ms=10.0, **changes):
    """Falls from 4 to 3 to where it ends in each seed; None: it diverged."""
    runs = {
        seed: trained(4.0, ending="diverged") if end is None else trained(4.0, 3.0, end)
        for seed, end in enumerate(ends)
    }
    made = VariantResult(
        label=label,
        spec="tiny",
        change="",
        parameters=1000,
        operations=6e6,
        steps=15,
        cache={"per_token": 1, "constant": 0, "at_context": cache},
        searched=None,
        trained=runs,
        step={**STEP, "step_ms": step_ms, "paths": ["sdpa"]},
        memory=None,
        decoding=None,
    )
    return dataclasses.replace(made, **changes)


def conditions(seeds, **settings):
    return Conditions(
        settings=ComparisonSettings(**settings),
        seeds=list(range(seeds)),
        search=Search(settings.get("rates", ()), "a test asks for it"),
        text="a text",
        held_out=500,
        tokens=32,
        context=16,
        samples={"prompt": "a", "seed": 0, "texts": {"good": "b"}},
    )


GOOD = variant("good", [2.0, 2.1, 2.2], cache=200)
BAD = variant("bad", [2.5, 2.6, 2.701], step_ms=20.0)
LIKE = variant("like", [2.1, 2.0, 2.21], step_ms=5.0)


def test_the_answer_names_the_best_and_whom_it_beats():
    said = answer(Analysis(conditions(3), [BAD, LIKE, GOOD]))
    assert said.startswith("good has the lowest held-out loss, 2.100 nats a token, 0.003 (")
    lead = Analysis(conditions(3), [BAD, LIKE, GOOD]).above_best(LIKE)
    assert lead.mean == pytest.approx(0.01 / 3) and lead.low < 0 < lead.high
    assert f"0.003 ({lead.low:.3f} to {lead.high:.3f}) below like; that is better than bad" in said
    assert "better than bad" in said and "3 seeds cannot tell it from like" in said


def test_one_seed_never_tells():
    analysis = Analysis(conditions(1), [variant("a", [1.0]), variant("b", [9.0])])
    assert "1 seed cannot tell it from b" in answer(analysis)
    assert analysis.above_best(analysis.ranked[0]) is None
    assert analysis.above_best(analysis.ranked[1]).mean == 8.0
    assert analysis.verdict("a", "b") == analysis.verdict("b", "a") == "cannot tell"


def test_who_diverged_is_said_and_counts_in_no_mean():
    half = variant("half", [1.0, None, None])
    said = answer(Analysis(conditions(3), [GOOD, half]))
    assert said.startswith("half has the lowest") and "Half diverged in 2 of 3 trainings." in said
    never = variant("never", [None, None, None])
    assert answer(Analysis(conditions(3), [never])) == (
        "No training finished: never diverged in 3 of 3 trainings."
    )


def test_the_loss_to_reach_is_the_best_that_all_reached():
    analysis = Analysis(conditions(3), [GOOD, BAD])
    assert analysis.target == pytest.approx((2.5 + 2.6 + 2.701) / 3)
    assert BAD.steps_to(analysis.target) == pytest.approx(15)
    assert GOOD.steps_to(2.55) == pytest.approx(10 + 5 * (3 - 2.55) / (3 - 2.1))
    assert GOOD.seconds_to(3.0) == pytest.approx(0.1) and GOOD.steps_to(4.5) == 5
    assert GOOD.steps_to(1.0) is None and GOOD.seconds_to(1.0) is None
    assert Analysis(conditions(3, target=2.9), [GOOD, BAD]).target == 2.9


def test_off_the_front_is_who_is_told_worse_than_one_that_is_not_clearly_dearer():
    analysis = Analysis(conditions(3), [GOOD, BAD, LIKE])
    assert analysis.front(analysis.cache_costs) == {"good", "like"}
    assert analysis.front(analysis.step_costs) == {"good", "like"}
    assert analysis.front({"good": None, "bad": Cost(1, 1, 1), "like": None}) == {"bad"}
    cheap = {"good": Cost(5, 6, 7), "bad": Cost(1, 2, 4), "like": Cost(5, 6, 7)}
    assert analysis.front(cheap) == {"good", "bad", "like"}


@pytest.mark.parametrize("middle", [3.9, 4.1])
def test_noise_of_the_times_puts_nobody_on_or_off_the_front(middle):
    """Turns that overlap are no difference, whichever median is lower."""
    analysis = Analysis(conditions(3), [GOOD, BAD])
    assert analysis.front({"good": Cost(3, 4, 5), "bad": Cost(3.5, middle, 4.5)}) == {"good"}


def test_one_turn_says_nothing_about_the_times():
    fast = dataclasses.replace(BAD, step={**BAD.step, **dict.fromkeys(TIMED, 1.0)})
    for turns, front in ((9, {"good", "bad"}), (1, {"good"})):
        analysis = Analysis(conditions(3, turns=turns), [GOOD, fast])
        assert analysis.front(analysis.step_costs) == front


def test_the_answer_says_what_matching_changed():
    wider = dataclasses.replace(BAD, change="feed-forward expansion 4 → 5", operations=6.3e6)
    said = answer(Analysis(conditions(3), [GOOD, wider, dataclasses.replace(wider, label="also")]))
    assert (
        "To be equal in parameters, bad and also: feed-forward expansion 4 → 5 "
        "(+5.0 % operations a token)." in said
    )
    longer = dataclasses.replace(BAD, change="steps 15 → 20", parameters=900)
    said = answer(Analysis(conditions(3, match="flops"), [GOOD, longer]))
    assert "To be equal in operations, bad: steps 15 → 20 (-10.0 % parameters)." in said
    assert "To be equal" not in answer(Analysis(conditions(3), [GOOD, BAD]))


def test_the_answer_says_whether_rates_were_searched():
    assert "Learning rates were not searched: a test" in answer(
        Analysis(conditions(3), [GOOD, BAD])
    )
    both = [
        dataclasses.replace(one, searched={"losses": [], "chosen": rate})
        for one, rate in ((GOOD, 2.0), (BAD, 1.0))
    ]
    said = answer(Analysis(conditions(3, rates=(1.0, 2.0)), both))
    assert "searched for each over × 1 and 2" in said and "× 1 for bad, × 2 for good." in said


def test_losses_are_of_the_stretches_and_their_text_widens_the_interval():
    def over(wave):
        sums = [100 * (2.0 + wave), 100 * (2.0 - wave)]
        return {seed: with_text(sums) for seed in range(3)}

    still, wavy = (dataclasses.replace(GOOD, trained=over(wave)) for wave in (0.0, 0.5))
    analysis = Analysis(conditions(3), [still, wavy])
    assert still.losses == wavy.losses == {0: 2.0, 1: 2.0, 2: 2.0}
    assert analysis.loss(still).high == pytest.approx(2.0)
    # two stretches, 1 degree, and a variance that is allowed for as larger than they say
    wanted = 2 + 12.706 * 0.5 * math.sqrt(ALLOWANCE)
    assert analysis.loss(wavy).high == pytest.approx(wanted, abs=1e-3)


def test_the_report_says_how_alike_neighbouring_stretches_are():
    def over(slope, seeds=2):
        sums = [100 * (2.0 + slope * place) for place in range(12)]
        sums = [[total + 0.1 * seed * slope for total in sums] for seed in range(seeds)]
        return {s: with_text(sums[s]) for s in range(seeds)}

    flat, rising = (
        dataclasses.replace(one, trained=over(slope)) for one, slope in ((GOOD, 0.0), (BAD, 0.1))
    )
    found = findings(conditions(2), [flat, rising])
    (pair,) = found.summary["pairs"]
    # a straight line of 12 values
    assert pair["neighbours"] == pytest.approx(0.75, abs=0.01)
    said = " ".join(found.sections[1].text.split())
    assert "neighbouring stretches (12 of 100 tokens) correlate by 0.75 to 0.75" in said
    assert "comes from 6 long parts of the text" in said
    assert "correlate by 0.75" not in str(findings(conditions(3), [GOOD, BAD]).sections[1].text)


def test_without_noise_nothing_is_told_and_that_is_said():
    equal = [variant("a", [1.0, 2.0, 3.0]), variant("b", [2.0, 3.0, 4.0])]
    found = findings(conditions(3), equal)
    assert "nothing is known" in found.sections[1].text and "cannot tell it from b" in found.answer
    assert found.summary["residual_spread"] is None


def test_all_that_the_clock_decides_is_in_one_place():
    slower = [dataclasses.replace(one, step={**one.step, "step_ms": 99.0}) for one in (GOOD, BAD)]
    quick, slow = (findings(conditions(3), found) for found in ([GOOD, BAD], slower))
    assert quick.summary["measured"] != slow.summary["measured"]
    for one in (quick, slow):
        one.summary.pop("measured")
    assert quick.summary == slow.summary and quick.answer == slow.answer
    others = [[s for s in one.sections if s.heading != TIMES] for one in (quick, slow)]
    assert others[0] == others[1] and len(others[0]) == len(quick.sections) - 1


def test_the_report_has_every_pair_and_every_part():
    found = findings(conditions(3, rates=(1.0, 2.0)), [GOOD, BAD, variant("lost", [None] * 3)])
    headings = [section.heading for section in found.sections]
    assert headings == [
        "How good",
        "Every pair",
        "Learning curves",
        "Quality against cache",
        TIMES,
        "What they write",
        "What is equal",
    ]
    matrix = found.sections[1].blocks[0]
    assert [list(row) for row in matrix.rows] == [
        ["good", None, "better", "cannot tell"],
        ["bad", "worse", None, "cannot tell"],
        ["lost", "cannot tell", "cannot tell", None],
    ]
    assert found.summary["variants"]["lost"]["loss"] is None
    assert len(found.summary["pairs"]) == 3 and found.summary["correction"] == "holm"


def test_a_searched_rate_at_the_edge_is_named_and_so_is_a_training_that_did_not_finish():
    rates = {"losses": [[1.0, 2.0], [2.0, None]], "chosen": 1.0}
    found = findings(
        conditions(3, rates=(1.0, 2.0)),
        [dataclasses.replace(GOOD, searched=rates), dataclasses.replace(BAD, searched=rates)],
    )
    (section,) = [s for s in found.sections if s.heading == "Learning rates"]
    assert "is at the edge" in section.text
    assert section.blocks[0].note == "–: this training did not finish."
    whole = {"losses": [[1.0, 2.0], [2.0, 1.5]], "chosen": 2.0}
    found = findings(
        conditions(3, rates=(1.0, 2.0)),
        [dataclasses.replace(one, searched=whole) for one in (GOOD, BAD)],
    )
    (section,) = [s for s in found.sections if s.heading == "Learning rates"]
    assert section.blocks[0].note == ""
    assert summary(Analysis(conditions(3), [GOOD]))["variants"]["good"]["rates"] is None
