"""The smallest counter-example of a failure, and a script that shows it without this package.

    sizes {batch, length, …} --made smaller while it still fails--> sizes --as text--> script

A failure is repeated on a stage (`attnlab/audit/stage.py`): the code made afresh, with weights and
inputs that follow from seeds of torch alone, called as the audit called it. What compares here is
printed into the script, so what fails here fails there.

Axes: b batch, t time, e width of the outputs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from attnlab.audit import stage as staging
from attnlab.audit.adapters import HEADS, KV_HEADS, LAYERS, VOCABULARIES, WIDTHS
from attnlab.audit.bench import LENGTHS, SAFETY, Bench
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.stage import Stage, moved, replaced
from attnlab.audit.subject import Subject

SECONDS = 1.0  # of computing for one failure: to find it again, and to make it smaller
SEEDS = 3
CLEAR = 1e6  # times the tolerance
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


# What follows is printed into scripts: it knows torch, and of this package only what is printed
# with it. Each returns whether it fails, and what was seen.


def causality_fails(
    ask: Any,
    draw: Any,
    *,
    batch: int,
    length: int,
    first: int,
    last: int,
    factor: float,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Change the inputs from first to last: no output before them may move."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    if x.is_floating_point():  # large inputs show a mask that large scores beat
        x, other = x * factor, other * factor
    change = moved(ask(replaced(x, other, first, last)), ask(x))[:, :first].amax(0)
    size, at = float(change.max()), int(change.argmax())
    which = f"input {first} changes" if first == last else f"inputs {first} to {last} change"
    return size > tolerance * factor, f"output {at} moves by {size:.2g} when {which}, of {length}"


def window_fails(
    ask: Any,
    draw: Any,
    *,
    batch: int,
    length: int,
    output: int,
    input: int,
    wanted: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Change one input: the output moves if, and only if, it is among the last `wanted`."""
    x, size = draw(batch, length, seed), 0.0
    for other in range(3):  # one replacement might happen not to matter
        changed = replaced(x, draw(batch, length, seed + 100 + other), input, input)
        size = max(size, float(moved(ask(changed), ask(x))[:, output].max()))
    seen, allowed = size > tolerance, output - input < wanted
    what = f"moves by {size:.2g}" if seen else "does not move"
    rule = "inside" if allowed else "outside"
    text = f"output {output} {what} when input {input} changes, {rule} its {wanted} keys"
    return seen != allowed, text


def cache_fails(
    ask: Any,
    draw: Any,
    step: Any,
    new_cache: Any,
    *,
    batch: int,
    pieces: list[int],
    warm: bool,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Decode in pieces: the outputs are those of the whole text, also after another text."""
    length = sum(pieces)
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    for text in [other, x] if warm else [x]:
        whole, cache, start = ask(text), new_cache(), 0
        for size in pieces:
            end = start + size
            change = moved(step(text[:, start:end], cache)[:, -size:], whole[:, start:end]).amax(0)
            wrong = ~(change <= tolerance)
            if text is x and bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                name = "a second text" if warm else "the text"
                seen = f"differs by {float(change[at]):.2g} at position {start + at}"
                return True, f"{name} in pieces of {pieces} {seen}"
            start = end
    return False, f"in pieces of {pieces} the outputs are those of the whole text"


def batch_fails(
    ask: Any, draw: Any, *, what: str, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """A row is the same beside other rows, alone, and in another order."""
    x = draw(batch, length, seed)
    together = ask(x)
    if what == "its neighbours change":
        others = torch.cat([x[:1], draw(batch, length, seed + 100)[1:]])
        change = moved(ask(others)[:1], together[:1])
    elif what == "it runs alone":
        change = moved(ask(x[:1]), together[:1])
    else:
        change = moved(ask(x.flip(0)).flip(0), together)
    size, at = float(change.max()), int(change.amax(0).argmax())
    return size > tolerance, f"a row's output {at} moves by {size:.2g} when {what}"


def padding_fails(
    ask: Any,
    draw: Any,
    *,
    what: str,
    side: str,
    batch: int,
    length: int,
    real: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Row 0 has so many real inputs, and padding on a side: its real outputs do not know of it."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    nothing = torch.zeros(batch, length, dtype=torch.bool)
    kept = slice(length - real, length) if side == "left" else slice(0, real)
    mask = nothing.clone()
    mask[0] = True
    mask[0, kept] = False
    if what == "a mask without padding is given":
        change = moved(ask(x, nothing), ask(x))
    elif what == "another row has padding":
        change = moved(ask(x, mask)[1:], ask(x)[1:])
    elif what == "padding is added":
        change = moved(ask(x, mask)[:1, kept], ask(x[:1, kept]))
    else:
        filled = torch.full_like(x, torch.nan) if what == "the padding holds NaN" else other
        changed = torch.where(mask if x.dim() == 2 else mask[..., None], filled, x)
        change = moved(ask(changed, mask)[:1, kept], ask(x, mask)[:1, kept])
    size, at = float(change.max()), int(change.amax(0).argmax())
    text = f"real output {at} moves by {size:.2g} when {what}"
    return size > tolerance, f"{text} (padding on the {side})"


def evaluation_fails(
    ask: Any, draw: Any, *, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Ask the same three times."""
    x = draw(batch, length, seed)
    before = ask(x)
    size = max(float(moved(ask(x), before).max()) for _ in range(3))
    return size > tolerance, f"identical calls in evaluation mode differ by {size:.2g}"


def finite_fails(
    ask: Any, draw: Any, *, batch: int, length: int, factor: float, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Every output is a number, however large the inputs are."""
    x = draw(batch, length, seed)
    out = ask(x * factor if x.is_floating_point() else x)
    wrong = (~torch.isfinite(out)).any(-1).nonzero().tolist()
    if not wrong:
        return False, f"every output is finite for inputs times {factor:g}"
    row, at = wrong[0]
    return True, f"output {at} of row {row} is not finite for inputs times {factor:g}"


# Where a failure is looked for again, beginning with where the audit met it.

PADDED = {  # and how the audit speaks of it
    "a mask without padding is given": "a mask without padding",
    "the padding changes": "what stands in",
    "another row has padding": "another row",
    "the padding holds NaN": "NaN",
    "padding is added": "is not that without",
}
BESIDE = ("its neighbours change", "it runs alone", "the rows are in another order")


def _causality_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    lengths = [*([met["length"]] if "length" in met else []), 3, 7, 23, 70]
    for factor in (1.0, 1e3):
        for length in lengths:
            known = met.get("inputs") or ()
            for cut in dict.fromkeys([*known[:1], 1, length // 2, length - 1, length // 4]):
                yield {"batch": 2, "length": length, "first": cut, "last": length - 1} | {
                    "factor": factor
                }


def _window_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    keys = contract.window or 1
    wanted = keys if layers == 1 else layers * (keys - 1) + 1
    length = int(met.get("length") or min(max(3 * wanted + 2, 23), 100))
    known = [met["output"]] if "output" in met else []
    for output in [*known, length - 1, *range(length)]:
        seen = int(met.get("keys") or wanted + 1)
        for place in dict.fromkeys([output - seen + 1, output - wanted, output - wanted + 1, 0]):
            yield {"batch": 1, "length": length, "output": output, "input": place} | {
                "wanted": wanted
            }


def _cache_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    keys = contract.window or 4
    known = [list(met["pieces"])] if "pieces" in met else []
    long = [2 * keys + 1, *[1] * (keys + 4)]
    for warm in (False, True):
        for pieces in [*known, [1] * (3 * keys + 5), long, [keys, 2 * keys + 5], [3, 2, 3, 2]]:
            yield {"batch": 2, "pieces": pieces, "warm": warm}


def _batch_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    for length in dict.fromkeys([int(met.get("length") or 7), 2, 7, 23]):
        yield from ({"what": what, "batch": 3, "length": length} for what in BESIDE)


def _padding_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    said = str(met.get("what", ""))
    whats = sorted(PADDED, key=lambda what: PADDED[what] not in said)  # as it was met, first
    for what in whats:
        # a text on the right of padding stands elsewhere, which may matter and be right
        sides = ["right", "left"] if what in whats[:1] or what != "padding is added" else ["right"]
        for side in sorted(sides, key=lambda side: f"the {side}" not in said):
            yield {"what": what, "side": side, "batch": 3, "length": 13, "real": 8}


def _evaluation_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    yield from ({"batch": 2, "length": length} for length in (7, 23, 70))


def _finite_starts(met: Mapping[str, Any], contract: Contract, layers: int) -> Iterator[Sizes]:
    for length in dict.fromkeys([int(met.get("length") or 7), *LENGTHS]):
        for factor in dict.fromkeys([float(met.get("factor") or 1.0), 1.0, 1e3]):
            yield {"batch": 2, "length": length, "factor": factor}


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """How a property's failure is repeated: what compares, where it is looked for."""

    fails: Callable[..., tuple[bool, str]]
    starts: Callable[[Mapping[str, Any], Contract, int], Iterator[Sizes]]
    steps: bool = False


REPEATS = {
    "causality": Repeat(fails=causality_fails, starts=_causality_starts),
    "window": Repeat(fails=window_fails, starts=_window_starts),
    "cache": Repeat(fails=cache_fails, starts=_cache_starts, steps=True),
    "batch": Repeat(fails=batch_fails, starts=_batch_starts),
    "padding": Repeat(fails=padding_fails, starts=_padding_starts),
    "evaluation": Repeat(fails=evaluation_fails, starts=_evaluation_starts),
    "finite": Repeat(fails=finite_fails, starts=_finite_starts),
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
    return "pieces" not in sizes or (len(sizes["pieces"]) > 0 and min(sizes["pieces"]) > 0)


def smaller(sizes: Sizes) -> Iterator[Sizes]:
    """What to try next: shorter by the end, by the beginning, fewer rows, fewer changes."""
    for name in ("length", "batch", "real"):
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
    rest = (changed, sizes.get("real", 0), sizes.get("factor", 1.0))
    return (length, sizes["batch"], len(pieces), *rest)


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
    repeat = REPEATS.get(finding.name)
    if repeat is None:
        return Example(name=finding.name, reason="no script is written for this property yet")
    stage = staging.for_subject(subject, target, options)
    if repeat.steps and stage.stepping is None:
        reason = "how it is stepped is told by an adapter, and a script would need it"
        return Example(name=finding.name, reason=reason)
    for anew in (False, True):  # anew for every comparison: state may be what is wrong
        hunt = Hunt(repeat, _tolerance(finding, Bench(subject, contract)), anew)
        found = hunt.smallest(stage, _starts(finding, repeat, contract, subject.layers))
        if found is None:
            continue
        smallest, sizes = found
        fails, sentence = hunt.compared(smallest.again(), sizes, hunt.tolerance)
        if fails:
            return Example(
                name=finding.name,
                sentence=sentence,
                sizes={**sizes, **smallest.head_counts()},
                options=dict(smallest.options),
                file=staging.script_name(target, finding.name),
                script=staging.script(smallest, finding, repeat.fails, sizes, hunt.tolerance),
            )
    return Example(name=finding.name, reason="with fresh weights and inputs it was not met again")


def _starts(finding: Finding, repeat: Repeat, contract: Contract, layers: int) -> Iterator[Sizes]:
    met = finding.example if isinstance(finding.example, Mapping) else {}
    for sizes in repeat.starts(met, contract, layers):
        yield from ({**sizes, "seed": seed} for seed in range(SEEDS))


def _tolerance(finding: Finding, bench: Bench) -> float:
    largest = float(bench.run(bench.draw()).abs().nan_to_num().max())
    if finding.name == "evaluation":  # what the bench takes for steady
        return SAFETY * torch.finfo(torch.float32).eps * largest
    found = bench.tolerance
    return found if math.isfinite(found) else SAFETY * torch.finfo(bench.subject.dtype).eps


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
        margin = CLEAR if self._wrong(stage, sizes, CLEAR) else 1.0
        while True:
            lighter = (one for one in smaller(sizes) if weight(one) < weight(sizes))
            found = next((one for one in lighter if self._wrong(stage, one, margin)), None)
            if found is None:
                return self._fewer(stage, sizes, margin), sizes
            sizes = found

    def _fewer(self, stage: Stage, sizes: Sizes, margin: float) -> Stage:
        """With fewer heads, layers and a smaller width, where the code can be made so."""
        for names in (LAYERS, HEADS, KV_HEADS, WIDTHS, VOCABULARIES):
            for less in (1, 2, 4, 8, 16):
                candidate = None
                with suppress(Exception):
                    candidate = stage.with_less(names, less, names in (WIDTHS, VOCABULARIES))
                if candidate is not None and self._wrong(candidate, sizes, margin):
                    stage = candidate
                    break
        return stage

    def _wrong(self, stage: Stage, sizes: Sizes, margin: float) -> bool:
        if not legal(sizes) or time.thread_time() > self._until:
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
        steps = [stage.step, stage.new_cache] if self._repeat.steps else []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._repeat.fails(stage.ask, stage.draw, *steps, **sizes, tolerance=tolerance)
