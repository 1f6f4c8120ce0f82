"""`attnlab check statistics`: verdicts are wrong as rarely as they say, and find what is there.

Simulated experiments with known truth: how often any pair of equal variants is told apart, and how
often a real difference is found, by the pooled analysis (now) and by the differences of each pair
alone (before); then with a held-out text on which variants differ by turns, each stretch of it like
the next. Then real trainings: twins, which share the batches of their seed and differ in their
initial weights only, are dealt out at random as variants; every verdict on them is false. The
control judges every pair by itself, without a correction for their number: it must fail."""

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console

from attnlab import config, counter_rng, files, json_files, stop
from attnlab.checks import Tick
from attnlab.config import setting, settings
from attnlab.experiments import held
from attnlab.experiments.verdicts import (
    LEVEL,
    Losses,
    Stretches,
    Texts,
    holm,
    p_values,
    residual,
)
from attnlab.reports.report import Cell, Table
from attnlab.reports.terminal import grid
from attnlab.stop import stoppable
from attnlab.training import launch, loop, parallel, runs
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report
from attnlab.training.setup import prepare
from attnlab.training.weights import build_model

# of the lab's variants at their preset's rate: a difference worth finding, what seeds change alike
# in all of them, and what they change in each; and that at the rates that the lab finds
EFFECT, SEEDS_SPREAD, SPREAD, LAB_SPREAD = 0.064, 0.012, 0.0125, 0.019
# of one variant over the stretches of the reported text, for the rows that have text; a difference
# of two varies √2 times as much. The lab's rotary variants are near the first, learned positions
# near the second. How neighbouring stretches correlate: the last is beyond the promise
TEXT_SPREADS, STRETCHES, ALIKE = (0.02, 0.08), 30, (0.0, 0.6, 0.7)
PROMISED = 0.6
UNSTEADY = (2, 3, 5, 10)  # times the spread of the others, in one variant
# a model so small that a training takes a second or two
SMALL = (
    "model.width=32",
    "model.depth=1",
    "model.context=32",
    "model.attention.heads=2",
    "batch=8",
    "corpus.validation=0.02",
    "evaluate_every=none",
    "save_every=none",
    "sample_every=none",
    "save_best=false",
    "device=cpu",
)


@dataclass(frozen=True)
class Trial:
    """Losses of some variants in some seeds, and by stretches of the text if it varies."""

    losses: Losses
    texts: Texts | None = None


@settings
class StatisticsCheck:
    draws: int = setting(
        4000, low=4, about="simulated comparisons for each row; half of them where the text varies"
    )
    seeds: int = setting(10, low=6, about="random seeds of the real trainings")
    twins: int = setting(
        6, low=4, about="trainings of each seed, which differ in their initial weights"
    )
    steps: int = setting(100, low=1, about="steps of each training")
    deals: int = setting(
        1000, low=1, about="ways to deal out the trainings as variants, for each row"
    )
    seed: int = setting(0, about="random seed of the simulations")

    def run(self, tick: Tick) -> dict[str, Any]:
        done: dict[str, Any] = {}
        with stoppable(lambda: f"{len(done)} of {len(TITLES)} tables", done.copy):
            simulated = done["simulated"] = [
                self._simulate(variants, seeds, tick)
                for variants, seeds in itertools.product((2, 4, 6), (2, 3, 4, 5))
            ]
            unsteady = done["one_variant_less_steady"] = [
                self._unsteady(variants, seeds, tick)
                for variants, seeds in ((4, 3), (6, 3), (4, 5))
            ]
            text = done["text_varies_too"] = [
                self._text(variants, seeds, spread, tick)
                for variants, seeds in ((2, 2), (2, 3), (2, 4), (2, 8), (4, 3), (4, 4), (6, 3))
                for spread in TEXT_SPREADS
            ]
            power = done["power_of_4_variants"] = [
                self._power(seeds, spread, text_spread, tick)
                for seeds in (3, 4, 5)
                for spread in (SPREAD, LAB_SPREAD)
                for text_spread in (0.0, *TEXT_SPREADS)
            ]
            pool = trainings(self, tick)
            real = [self._real(pool, seeds, tick) for seeds in (3, 4, 5)]
        rare = [row["false_%"] <= _most(self.draws) for row in simulated]
        rare += [row["false_%"][f"x{UNSTEADY[0]}"] <= _most(self.draws) for row in unsteady]
        kept_to = [_alike(alike) for alike in ALIKE if alike <= PROMISED]
        rare += [row["false_%"][name] <= _most(self.draws // 2) for row in text for name in kept_to]
        found = [row["found_%"] >= row["found_before_%"] for row in simulated]
        kept = [row["false_from_%"] <= 100 * (1 - LEVEL) for row in real]
        control = [row["control_uncorrected_%"] for row in real]
        return {
            "simulated": simulated,
            "one_variant_less_steady": unsteady,
            "text_varies_too": text,
            "power_of_4_variants": power,
            "standard_error_of_5_%": {
                "seeds_only": 100 * _share_error(self.draws),
                "text": 100 * _share_error(self.draws // 2),
            },
            "real_trainings": len(pool) * self.twins,
            "real_twins": real,
            "control_exceeds_the_level": min(control) > 100 * (1 - LEVEL),
            "passed": all([*rare, *found, *kept]) and min(control) > 100 * (1 - LEVEL),
        }

    def show(self, report: Mapping[str, Any], screen: Console) -> None:
        for key, title in TITLES.items():
            screen.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
            screen.print(grid(_table(report[key])), "")
        verdict = "passed" if report["passed"] else "failed"
        screen.print(
            f"{verdict}: false verdicts may be {100 * (1 - LEVEL):.3g} %, with three standard "
            f"errors of the draws {_most(self.draws):.3g} % (text varies: "
            f"{_most(self.draws // 2):.3g} %); {report['real_trainings']} real trainings",
            highlight=False,
            soft_wrap=True,
        )

    def _simulate(self, variants: int, seeds: int, tick: Tick) -> dict[str, Any]:
        tick(f"simulated: {variants} variants, {seeds} seeds")
        spread = [SPREAD] * variants
        equal = list(self._draw(variants, seeds, spread, 0.0))
        unequal = list(self._draw(variants, seeds, spread, EFFECT))
        return {
            "variants": variants,
            "seeds": seeds,
            "false_%": percent_told_apart(equal, pooled_test),
            "false_before_%": percent_told_apart(equal, paired_test),
            "found_%": percent_found(unequal, pooled_test),
            "found_before_%": percent_found(unequal, paired_test),
        }

    def _unsteady(self, variants: int, seeds: int, tick: Tick) -> dict[str, Any]:
        """The false verdicts when one variant varies more over the seeds than the others."""
        rows = {}
        for times in UNSTEADY:
            tick(f"simulated: {variants} variants, {seeds} seeds, one {times} × less steady")
            spread = [times * SPREAD, *[SPREAD] * (variants - 1)]
            rows[f"x{times}"] = percent_told_apart(
                self._draw(variants, seeds, spread, 0.0), pooled_test
            )
        return {"variants": variants, "seeds": seeds, "false_%": rows}

    def _text(self, variants: int, seeds: int, spread: float, tick: Tick) -> dict[str, Any]:
        """The false verdicts when another text would have favoured another variant."""
        tick(f"simulated: {variants} variants, {seeds} seeds, text varies by {spread}")
        steady, found, alone = [SPREAD] * variants, {}, {}
        for alike in ALIKE:
            made = list(self._draw(variants, seeds, steady, 0.0, spread, alike, self.draws // 2))
            found[_alike(alike)] = percent_told_apart(made, pooled_test)
            alone[_alike(alike)] = percent_told_apart(
                [Trial(one.losses) for one in made], pooled_test
            )
        return {
            "variants": variants,
            "seeds": seeds,
            "text_spread": spread,
            "false_%": found,
            "false_if_only_seeds_counted_%": alone,
        }

    def _power(self, seeds: int, spread: float, text: float, tick: Tick) -> dict[str, Any]:
        """How often a variant that is worse is told from one of three others."""
        tick(f"simulated: 4 variants, {seeds} seeds, one worse, text varies by {text}")
        draws = self.draws // 4
        made = list(self._draw(4, seeds, [spread] * 4, EFFECT, text, PROMISED, draws))
        return {
            "seeds": seeds,
            "spread": spread,
            "text_spread": text,
            "found_%": percent_found(made, pooled_test),
        }

    def _draw(
        self,
        variants: int,
        seeds: int,
        spread: Sequence[float],
        effect: float,
        text: float = 0.0,
        alike: float = 0.0,
        draws: int | None = None,
    ) -> Iterator[Trial]:
        """Trials whose first variant is worse by the effect, the others equal."""
        number = counter_rng.number(self.seed, "comparisons", variants, seeds)
        rng = np.random.default_rng(number)
        for _ in range(draws or self.draws):
            table = 1.6 + rng.normal(0, SEEDS_SPREAD, seeds)
            table = table + rng.normal(0, 1, (variants, seeds)) * np.array(spread)[:, None]
            table[0] += effect
            if not text:
                yield Trial(_by_name(table))
                continue
            waves = text * _waves(rng.normal(0, 1, (variants, 1, STRETCHES)), alike)
            by_text = table[:, :, None] + waves
            texts = _by_name(by_text, lambda row: Stretches(row.tolist(), [1.0] * STRETCHES))
            yield Trial(_by_name(by_text.mean(-1)), texts)

    def _real(self, pool: Sequence[Sequence[Stretches]], seeds: int, tick: Tick) -> dict[str, Any]:
        """Twins as 4 variants: every seed has its own twins, and who is which variant is chance."""
        tick(f"real twins as 4 variants with {seeds} seeds")
        rng = np.random.default_rng(counter_rng.number(self.seed, "deals", seeds))
        twins = range(len(pool[0]))
        noise = residual({f"{t}": {s: row[t].loss for s, row in enumerate(pool)} for t in twins})
        assert noise is not None, "trainings from other weights end alike"
        shift = EFFECT / SPREAD * math.sqrt(noise.value)
        wrong, before, uncorrected, found, found_before = [], [], [], [], []
        used = np.zeros((self.deals, len(pool)), dtype=bool)
        for deal in range(self.deals):
            chosen = rng.choice(len(pool), seeds, replace=False)
            used[deal, chosen] = True
            hands = {int(s): rng.permutation(len(pool[s]))[:4] for s in chosen}
            texts = {str(v): {s: pool[s][hand[v]] for s, hand in hands.items()} for v in range(4)}
            one = of_texts(texts)
            wrong.append(any(p <= 1 - LEVEL for p in pooled_test(one).values()))
            alone = paired_test(one)
            before.append(any(p <= 1 - LEVEL for p in alone.values()))
            uncorrected.append(any(p <= 1 - LEVEL for p in single(one).values()))
            moved = of_texts({**texts, "0": _shift(texts["0"], shift)})
            found.append(_share_of_first(pooled_test(moved)))
            found_before.append(_share_of_first(paired_test(moved)))
        error = _error(np.array(wrong, dtype=float), used)
        return {
            "variants": 4,
            "seeds": seeds,
            "false_%": 100 * fmean(wrong),
            "false_from_%": max(100 * (fmean(wrong) - 2 * error), 0.0),
            "false_to_%": 100 * (fmean(wrong) + 2 * error),
            "false_before_%": 100 * fmean(before),
            "control_uncorrected_%": 100 * fmean(uncorrected),
            "found_%": 100 * fmean(found),
            "found_before_%": 100 * fmean(found_before),
        }


TITLES = {
    "simulated": "Simulated: equal variants told apart (false), a worse one found",
    "one_variant_less_steady": "False verdicts where one variant varies more over the seeds",
    "text_varies_too": "False verdicts where the held-out text varies too",
    "power_of_4_variants": "How often a worse one of 4 variants is found",
    "real_twins": "Real trainings that differ in their first weights only",
}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What is nested becomes columns: false_% by x2, x3, …"""
    flat = [dict(_cells(row)) for row in rows]
    return Table(
        title="",
        columns=[name.replace("_", " ") for name in flat[0]],
        rows=[list(row.values()) for row in flat],
    )


def _cells(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Cell]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{before}{key} ")
        else:
            yield f"{before}{key}", value


Judge = Callable[[Trial], Mapping[tuple[str, str], float]]


def pooled_test(one: Trial) -> dict[tuple[str, str], float]:
    """p of every pair as comparisons judge it."""
    return p_values(one.losses, one.texts)


def single(one: Trial) -> dict[tuple[str, str], float]:
    """p of every pair from its own differences alone, as if there were no other pair."""
    both = itertools.combinations(one.losses, 2)
    return {(a, b): p_values({a: one.losses[a], b: one.losses[b]})[a, b] for a, b in both}


def paired_test(one: Trial) -> dict[tuple[str, str], float]:
    """The same with Holm's correction: how comparisons judged before."""
    alone = single(one)
    return dict(zip(alone, holm(list(alone.values())), strict=True))


def percent_told_apart(made: Iterator[Trial] | Sequence[Trial], judge: Judge) -> float:
    """Percent of the comparisons in which any pair is told apart."""
    return 100 * fmean(any(p <= 1 - LEVEL for p in judge(one).values()) for one in made)


def percent_found(made: Sequence[Trial], judge: Judge) -> float:
    """Percent of the pairs with the first variant that are told apart."""
    return 100 * fmean(_share_of_first(judge(one)) for one in made)


def _share_of_first(chances: Mapping[tuple[str, str], float]) -> float:
    return fmean(p <= 1 - LEVEL for (first, _), p in chances.items() if first == "0")


def of_texts(texts: Texts) -> Trial:
    losses = {name: {s: text.loss for s, text in row.items()} for name, row in texts.items()}
    return Trial(losses, texts)


def _shift(row: Mapping[int, Stretches], shift: float) -> dict[int, Stretches]:
    """The same losses, higher by so much."""
    return {
        seed: Stretches(np.add(one.sums, np.multiply(shift, one.counts)).tolist(), one.counts)
        for seed, one in row.items()
    }


def _by_name(table: Any, made: Callable[[Any], Any] = float) -> dict[str, dict[int, Any]]:
    return {
        str(variant): {seed: made(value) for seed, value in enumerate(row)}
        for variant, row in enumerate(table)
    }


def _waves(fresh: np.ndarray, alike: float) -> np.ndarray:
    """From independent values of spread 1, values that correlate so much with the next."""
    made = np.empty_like(fresh)
    made[..., 0] = fresh[..., 0]
    for place in range(1, fresh.shape[-1]):
        new = math.sqrt(1 - alike**2) * fresh[..., place]
        made[..., place] = alike * made[..., place - 1] + new
    return made


def _alike(correlation: float) -> str:
    return f"neighbours_{correlation:g}"


def _most(draws: int) -> float:
    """Percent of false verdicts that the level allows, with three standard errors of the draws."""
    return 100 * (1 - LEVEL + 3 * _share_error(draws))


def _share_error(draws: int) -> float:
    """Standard error of a share of draws that is as large as the level allows."""
    return math.sqrt(LEVEL * (1 - LEVEL) / draws)


def _error(wrong: np.ndarray, used: np.ndarray) -> float:
    """Standard error of a share over deals of the same trainings.

    Deals share trainings, so they are not independent; the seeds are. By the jackknife, leaving out
    each seed once, and what is due to the number of deals besides.
    """
    left = np.array([wrong[~used[:, s]].mean() for s in range(used.shape[1])])
    count, share = len(left), wrong.mean()
    by_seeds = (count - 1) / count * ((left - left.mean()) ** 2).sum()
    return math.sqrt(by_seeds + share * (1 - share) / len(wrong))


def trainings(check: StatisticsCheck, tick: Tick) -> list[list[Stretches]]:
    """Held-out losses of real trainings, by seed and twin, as comparisons measure them."""
    overrides = [*SMALL, f"steps={check.steps}"]
    recipe = launch.recipe_for("tiny", overrides)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as comparisons train
    try:
        with tempfile.TemporaryDirectory(prefix="attnlab-statistics-") as place:
            pool = []
            for seed in range(check.seeds):
                row = []
                for twin in range(check.twins):
                    done = seed * check.twins + twin
                    tick(f"{done} of {check.seeds * check.twins} real trainings")
                    one = dataclasses.replace(recipe, seed=check.seed + seed)
                    row.append(train_twin(one, twin, Path(place) / f"{seed}-{twin}"))
                pool.append(row)
            return pool
    finally:
        torch.set_num_threads(before)


def train_twin(recipe: Recipe, twin: int, folder: Path) -> Stretches:
    """Batches and everything else by the recipe's seed; the weights it begins with by the twin."""
    setup = prepare(recipe, folder)
    own = dataclasses.replace(setup.recipe, seed=counter_rng.number(recipe.seed, "twins", twin))
    setup = dataclasses.replace(setup, model=build_model(own))
    run = runs.Run(folder)
    run.checkpoints.mkdir(parents=True)
    files.write_whole(folder / "config.json", json_files.as_json(config.to_dict(setup.recipe)))
    with parallel.world(recipe.device) as world:
        stop.pass_on(loop.train(setup, run, world, Report()).ending)
    return Stretches(**held.measure(run))
