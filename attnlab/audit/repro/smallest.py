"""The smallest counter-example of a failure, and a script that shows it without this package.

    sizes {batch, length, …} --made smaller while it still fails--> sizes --as text--> script

A failure is repeated on a stage (`audit/repro/stage.py`): the code made afresh, with weights and
inputs that follow from seeds of torch alone, called as the audit called it. What compares here is
printed into the script, so what fails here fails there.

Axes: b batch, t time, e width of the outputs.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from attnlab.attention.positions import alibi_slopes
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.probe.probe import LENGTHS, SAFETY, Probe
from attnlab.audit.properties import packing
from attnlab.audit.properties.isolation import lengths_of
from attnlab.audit.properties.positions import STARTS
from attnlab.audit.properties.precision import MOST_BITS
from attnlab.audit.repro import comparing, looking
from attnlab.audit.repro import stage as staging
from attnlab.audit.repro.script import script, script_name
from attnlab.audit.repro.stage import Stage
from attnlab.audit.subject.adapters import HEADS, KV_HEADS, LAYERS, VOCABULARIES, WIDTHS
from attnlab.audit.subject.adapters import POSITIONS as PLACES
from attnlab.audit.subject.base import Attention, Subject

SECONDS = 1.0  # of computing for one failure: to find it again, and to make it smaller
SEEDS = 3
CLEAR = (1e6, 1e2)  # times the tolerance; float32 does not leave room for the first
Sizes = dict[str, Any]
POSITIONS = ("first", "last", "output", "input")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A failure at its smallest; `script` is empty where none can be written, for a `reason`."""

    name: str
    sentence: str = ""
    sizes: Sizes = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""  # to be called so
    script: str = ""
    reason: str = ""


# Where a failure is looked for again, beginning with where the audit met it.

PADDED = {  # and how the audit speaks of it
    "a mask without padding is given": "a mask without padding",
    "the padding changes": "what stands in",
    "another row has padding": "another row",
    "large numbers stand in the padding": "large numbers",
    "padding is added": "is not that without",
    "it has padding": "makes them no numbers",
}
LEFT_PADDED = {
    "what stands in the padding changed": "the padding changes",
    "the other row of the batch has padding": "another row has padding",
    "padding stands before it": "padding is added",
}
BESIDE = ("its neighbours change", "it runs alone", "the rows are in another order")


def _causality_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    lengths = [*([met["length"]] if "length" in met else []), 3, 7, 23, 70]
    for factor in (1.0, 1e3):
        for length in lengths:
            known = met.get("inputs") or ()
            for cut in dict.fromkeys([*known[:1], 1, length // 2, length - 1, length // 4]):
                yield {"batch": 2, "length": length, "first": cut, "last": length - 1} | {
                    "factor": factor
                }


def _window_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    keys = contract.window or 1
    layers = subject.layers
    wanted = keys if layers == 1 else layers * (keys - 1) + 1
    length = int(met.get("length") or min(max(3 * wanted + 2, 23), 100))
    known = [met["output"]] if "output" in met else []
    for output in [*known, length - 1, *range(length)]:
        seen = int(met.get("keys") or wanted + 1)
        for place in dict.fromkeys([output - seen + 1, output - wanted, output - wanted + 1, 0]):
            yield {"batch": 1, "length": length, "output": output, "input": place} | {
                "wanted": wanted
            }


def _cache_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    keys = contract.window or 4
    known = [list(met["pieces"])] if "pieces" in met else []
    long = [2 * keys + 1, *[1] * (keys + 4)]
    for warm in (False, True):
        for pieces in [*known, [1] * (3 * keys + 5), long, [keys, 2 * keys + 5], [3, 2, 3, 2]]:
            yield {"batch": 2, "pieces": pieces, "warm": warm}


def _batch_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    for length in dict.fromkeys([int(met.get("length") or 7), 2, 7, 23]):
        yield from ({"what": what, "batch": 3, "length": length} for what in BESIDE)


def _padding_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    said = str(met.get("what", ""))
    whats = sorted(PADDED, key=lambda what: PADDED[what] not in said)  # as it was met, first
    length, real = lengths_of(subject)
    for what in whats:
        # a text on the right of padding stands elsewhere, which may matter and be right
        sides = ["right", "left"] if what in whats[:1] or what != "padding is added" else ["right"]
        for side in sorted(sides, key=lambda side: f"the {side}" not in said):
            yield {"what": what, "side": side, "batch": 3, "length": length, "real": real}


def _left_padding_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    if met.get("what") in LEFT_PADDED:
        what = LEFT_PADDED[met["what"]]
        yield {"what": what, "side": "left", "batch": 3, "length": 13, "real": 8}


def _behind_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    if "decoded" in str(met.get("what")):
        yield {"batch": 2, "length": 13, "real": 8, "steps": 4}


def _evaluation_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    yield from ({"batch": 2, "length": length} for length in (7, 23, 70))


def _finite_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    for length in dict.fromkeys([int(met.get("length") or 7), *LENGTHS]):
        for factor in dict.fromkeys([float(met.get("factor") or 1.0), 1.0, 1e3]):
            yield {"batch": 2, "length": length, "factor": factor}


def _backends_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    padded = ["with padding on the right", "with padding on the left"] if subject.pads else []
    for what in sorted(["as it is", *padded], key=lambda what: what not in str(met.get("what"))):
        yield from ({"what": what, "batch": 2, "length": length} for length in (2, 7, 13, 23))


def _packing_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    way = packing.way_of(Probe(subject, contract))
    if way is not None and met:
        takes = [one for one in subject.takes if one in packing.WORDS]  # type: ignore[attr-defined]
        how = {"way": way, "takes": takes, "causal": bool(contract.causal)}
        yield {**how, "what": met["what"], "text": met["text"], "pieces": list(met["lengths"])} | {
            "batch": 1
        }


def _precision_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    yield from ({"batch": 2, "length": length, "most": MOST_BITS} for length in (23, 70))


def _loss_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    if "loss" in met and "padding" not in str(met["loss"]):
        yield {"word": str(met.get("word", "")), "batch": 2, "length": 11}


def _loss_padding_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    if "padding" in str(met.get("loss", "")):
        yield {"batch": 2, "length": 11, "real": 5}


def _parts_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    if "parts" in met:
        yield {"ragged": "unequal" in str(met["parts"]), "batch": 8, "length": 11}


def _spans_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    if "spans" in met:
        yield {"batch": 1, "length": 40, "seeds": 64}


def _reading_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    if isinstance(subject, Attention):
        yield {"batch": 1, "length": 5}


def _sharing_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    if not isinstance(subject, Attention) and "map" in met:
        yield {"wanted": met.get("wanted"), "count": contract.heads, "batch": 1, "length": 7}


def _inside_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    if not isinstance(subject, Attention):
        yield {"batch": 1, "length": 7}


def _bending_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    if not isinstance(subject, Attention):
        yield from ({"batch": 1, "length": 11, "short": short} for short in (2, 3, 4, 6))


def _scale_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    yield {"wanted": met.get("wanted"), "batch": 2, "length": 7}


def _weights_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    whats = ["future", "sums"] if met.get("future") else ["sums"]
    yield from ({"what": what, "batch": 2, "length": n} for what in whats for n in (7, 23))


def _positions_starts(
    met: Mapping[str, Any], contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    declared, kind = contract.positions, met.get("kind")
    whats = [{"none": "none", "alibi": "alibi", "rotary": "rotary"}.get(str(declared), "relative")]
    if contract.positions is None and (contract.rope_base or contract.rope_layout):
        whats = ["rotary"]
    if declared == "absolute":
        whats = ["added"]
    elif kind == "absolute":
        whats.insert(0, "not added")
    elif kind == "alibi":
        whats.insert(0, "falling")
    elif kind in ("rotary", "turned"):
        whats = list(dict.fromkeys(["relative", *whats, "rotary"]))
    count = int(met.get("heads") or contract.heads or subject.heads or 1)
    rotary = (contract.rope_layout, contract.rope_base, contract.rope_fraction)
    for what in whats:
        known = {"rotary": rotary, "slopes": alibi_slopes(count).tolist()}
        layer = int(met.get("layer") or 0)
        yield {"what": what, **known, "layer": layer, "batch": 2, "length": 7}


def _drift_starts(met: Mapping[str, Any], contract: Contract, subject: Subject) -> Iterator[Sizes]:
    takes = getattr(subject, "takes", ())
    word = next((one for one in takes if one in PLACES), "") if subject.placed else ""
    own = str(subject.dtype).removeprefix("torch.")
    if met.get("drifts"):
        for dtype in dict.fromkeys([own, contract.dtype or own]):
            for start in STARTS if word else STARTS[:1]:
                yield {"start": start, "word": word, "dtype": dtype, "batch": 2}


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """How a property's failure is repeated: what compares, where it is looked for."""

    fails: Callable[..., tuple[bool, str]]
    starts: Callable[[Mapping[str, Any], Contract, Subject], Iterator[Sizes]]
    fixed: tuple[Sequence[str], ...] = ()  # of the code: what is expected of it depends on these


REPEATS = {
    "causality": (Repeat(fails=comparing.causality_fails, starts=_causality_starts),),
    "window": (Repeat(fails=comparing.window_fails, starts=_window_starts, fixed=(LAYERS,)),),
    "cache": (Repeat(fails=comparing.cache_fails, starts=_cache_starts),),
    "batch": (Repeat(fails=comparing.batch_fails, starts=_batch_starts),),
    "padding": (Repeat(fails=comparing.padding_fails, starts=_padding_starts),),
    "left padding": (
        Repeat(fails=comparing.padding_fails, starts=_left_padding_starts),
        Repeat(fails=comparing.behind_fails, starts=_behind_starts),
    ),
    "packing": (Repeat(fails=comparing.packing_fails, starts=_packing_starts),),
    "evaluation": (Repeat(fails=comparing.evaluation_fails, starts=_evaluation_starts),),
    "finite": (Repeat(fails=comparing.finite_fails, starts=_finite_starts),),
    "backends": (Repeat(fails=comparing.backends_fails, starts=_backends_starts),),
    "precision": (Repeat(fails=comparing.precision_fails, starts=_precision_starts),),
    "training": (
        Repeat(fails=comparing.loss_fails, starts=_loss_starts),
        Repeat(fails=comparing.loss_padding_fails, starts=_loss_padding_starts),
        Repeat(fails=comparing.parts_fails, starts=_parts_starts),
        Repeat(fails=comparing.spans_fails, starts=_spans_starts),
    ),
    "heads": (
        Repeat(fails=looking.reading_fails, starts=_reading_starts),
        Repeat(fails=looking.sharing_fails, starts=_sharing_starts, fixed=(HEADS, KV_HEADS)),
        Repeat(fails=looking.landing_fails, starts=_inside_starts),
        Repeat(fails=looking.bending_fails, starts=_bending_starts),
    ),
    "scale": (Repeat(fails=looking.scale_fails, starts=_scale_starts, fixed=(HEADS, WIDTHS)),),
    "weights": (Repeat(fails=looking.weights_fails, starts=_weights_starts),),
    "positions": (
        Repeat(fails=looking.drift_fails, starts=_drift_starts),
        Repeat(fails=looking.positions_fails, starts=_positions_starts, fixed=(HEADS, LAYERS)),
    ),
}


def legal(sizes: Sizes) -> bool:
    """Whether sizes of any property make sense together."""
    length, what = sizes.get("length", 1), sizes.get("what")
    if sizes["batch"] < (2 if what in (*BESIDE, "another row has padding") else 1) or length < 1:
        return False
    if "first" in sizes and not 1 <= sizes["first"] <= sizes["last"] < length:
        return False
    if "output" in sizes and not 0 <= sizes["input"] <= sizes["output"] < length:
        return False
    if "real" in sizes and not 1 <= sizes["real"] < length:
        return False
    if "short" in sizes and not 1 < sizes["short"] < length:
        return False
    if "steps" in sizes and not 1 <= sizes["steps"] < sizes["real"]:  # none begins with padding
        return False
    if "seeds" in sizes and length < 16:  # of fewer, some places may have to go
        return False
    return "pieces" not in sizes or (len(sizes["pieces"]) > 0 and min(sizes["pieces"]) > 0)


def smaller(sizes: Sizes) -> Iterator[Sizes]:
    """What to try next: shorter by the end, by the beginning, fewer rows, fewer changes."""
    for name in ("length", "batch", "real", "short", "steps"):
        if name in sizes:
            value = sizes[name]
            yield from ({**sizes, name: less} for less in dict.fromkeys([1, value // 2, value - 1]))
    if "last" in sizes:
        yield from ({**sizes, "last": last} for last in range(sizes["first"], sizes["last"]))
        yield from (
            {**sizes, "first": late} for late in range(sizes["first"] + 1, sizes["last"] + 1)
        )
    places = [name for name in ("length", "real", *POSITIONS) if name in sizes]
    if len(places) > 1:
        for less in dict.fromkeys([sizes["length"] // 2, 1]):
            yield {**sizes, **{name: sizes[name] - less for name in places}}
    if sizes.get("factor", 1.0) > 1:
        yield {**sizes, "factor": 1.0}
    pieces = sizes.get("pieces", [])
    yield from ({**sizes, "pieces": pieces[:end]} for end in (1, len(pieces) // 2, len(pieces) - 1))
    for place in range(len(pieces) - 1):  # two as one
        merged = pieces[place] + pieces[place + 1]
        yield {**sizes, "pieces": [*pieces[:place], merged, *pieces[place + 2 :]]}
    for place, size in enumerate(pieces):
        yield {**sizes, "pieces": pieces[:place] + pieces[place + 1 :]}
        for less in dict.fromkeys([1, size // 2, size - 1]):
            yield {**sizes, "pieces": [*pieces[:place], less, *pieces[place + 1 :]]}


def weight(sizes: Sizes) -> tuple[float, ...]:
    """What has to become less."""
    changed = sizes.get("last", 0) - sizes.get("first", 0)
    pieces = sizes.get("pieces", [])
    length = sizes.get("length", 0) + sum(pieces)
    few = [sizes.get(name, 0) for name in ("real", "short", "steps")]
    return (length, sizes["batch"], len(pieces), changed, *few, sizes.get("factor", 1.0))


def examples_of(
    certificate: Certificate, subject: Subject, target: str, options: Mapping[str, Any]
) -> list[Example]:
    """One for each failure."""
    failed = [one for one in certificate.findings if one.verdict == "fail"]
    found = []
    for finding in failed:
        try:
            found.append(_example(finding, certificate.contract, subject, target, options))
        except Exception as error:  # a person's code may raise anything, and evidence is extra
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            found.append(Example(name=finding.name, reason=f"it could not be repeated: {reason}"))
    return found


def _example(
    finding: Finding,
    contract: Contract,
    subject: Subject,
    target: str,
    options: Mapping[str, Any],
) -> Example:
    stage = staging.for_subject(subject, target, options)
    for name, call in (("cache", stage.stepping), ("padding", stage.padded)):
        if finding.name == name and call is None and stage.asking is not None:
            reason = "how it is called there is told by an adapter, and a script would need it"
            return Example(name=finding.name, reason=reason)
    met = finding.example if isinstance(finding.example, Mapping) else {}
    tolerance = _tolerance(finding, Probe(subject, contract))
    for way, limit in stage.as_met(met).ways(finding.name, tolerance):
        # anew for every comparison: state may be what is wrong
        for anew, repeat in itertools.product((False, True), REPEATS.get(finding.name, ())):
            hunt = Hunt(repeat, limit, anew)
            found = hunt.smallest(way, _starts(met, repeat, contract, subject))
            if found is None:
                continue
            smallest, sizes = found
            fails, sentence = hunt.compared(smallest.again(), sizes, limit)
            if fails:
                return Example(
                    name=finding.name,
                    sentence=sentence,
                    sizes={**sizes, **smallest.head_counts()},
                    options=dict(smallest.options),
                    file=script_name(target, finding.name),
                    script=script(smallest, finding, repeat.fails, sizes, limit),
                )
    return Example(name=finding.name, reason="with fresh weights and inputs it was not met again")


def _starts(
    met: Mapping[str, Any], repeat: Repeat, contract: Contract, subject: Subject
) -> Iterator[Sizes]:
    for sizes in repeat.starts(met, contract, subject):
        yield from ({**sizes, "seed": seed} for seed in range(SEEDS))


def _tolerance(finding: Finding, probe: Probe) -> float:
    largest = float(probe.run(probe.draw()).abs().nan_to_num().max())
    if finding.name == "evaluation":  # what the probe takes for steady
        return SAFETY * torch.finfo(torch.float32).eps * largest
    found = probe.tolerance
    return found if math.isfinite(found) else SAFETY * torch.finfo(probe.subject.dtype).eps


class Hunt:
    """Finds a failure again, and makes it smaller, within a budget of computing time."""

    def __init__(self, repeat: Repeat, tolerance: float, anew: bool) -> None:
        self.tolerance = tolerance
        self._repeat, self._anew = repeat, anew
        self._until = time.thread_time() + SECONDS  # waiting for others does not count

    def smallest(self, stage: Stage, starts: Iterator[Sizes]) -> tuple[Stage, Sizes] | None:
        sizes = next((sizes for sizes in starts if self._wrong(stage, sizes, 1.0)), None)
        if sizes is None:
            return None
        # what is far beyond rounding stays so: the script runs on other machines too
        margin = next((one for one in CLEAR if self._wrong(stage, sizes, one)), 1.0)
        while True:
            lighter = (one for one in smaller(sizes) if weight(one) < weight(sizes))
            found = next((one for one in lighter if self._wrong(stage, one, margin)), None)
            if found is None:
                return self._fewer(stage, sizes, margin), sizes
            sizes = found

    def _fewer(self, stage: Stage, sizes: Sizes, margin: float) -> Stage:
        """With fewer heads, layers and a smaller width, where the code can be made so."""
        every = (LAYERS, HEADS, KV_HEADS, WIDTHS, VOCABULARIES)
        for names in (one for one in every if one not in self._repeat.fixed):
            for less in (1, 2, 4, 8, 16):
                candidate = None
                with suppress(Exception):
                    candidate = stage.with_less(names, less, names in (WIDTHS, VOCABULARIES))
                if candidate is not None and self._wrong(candidate, sizes, margin):
                    stage = candidate
                    break
        return stage

    def _wrong(self, stage: Stage, sizes: Sizes, margin: float) -> bool:
        padded = [sizes["length"]] if "real" in sizes else []
        padded += [sizes["real"]] if sizes.get("what") == "padding is added" else []
        whole = not any(size % stage.block for size in padded)  # else more would be filled in
        if not whole or not legal(sizes) or time.thread_time() > self._until:
            return False
        limits = dict.fromkeys([self.tolerance, margin * self.tolerance])
        try:
            return all(
                self.compared(stage.again() if self._anew else stage, sizes, limit)[0]
                for limit in limits
            )
        except (Exception, SystemExit):  # too small for the code is not what is looked for
            return False

    def compared(self, stage: Stage, sizes: Sizes, tolerance: float) -> tuple[bool, str]:
        fails = self._repeat.fails
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return fails(*stage.tools(fails), **sizes, tolerance=tolerance)
