"""What is run on each machine, in a process of its own: `python -m attnlab.checks.machines.child`.

It takes a request in JSON, prints its progress as JSON texts and at the end all it found.
"""

import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attnlab import config, registry
from attnlab.attention.heads import combinations
from attnlab.checks import Tick
from attnlab.checks.machines.check import DOCS, WHERE
from attnlab.generate import Sampling, generate
from attnlab.kernels import hardware, native
from attnlab.kernels.problems import (
    FAST_PATHS,
    SHAPES,
    errors,
    limit_in_float64,
    limits_of_plain,
    refusal,
    solve,
)
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.theory import catalogue, document, record
from attnlab.theory.claim import Measure
from attnlab.theory.result import run_claim

DECODED = 1e-9  # float64 through two layers; what decides between two tokens is not below it
# in the short form: each kind of rule, chance, and bounds that are near
SHORT_CLAIMS = ["copy", "average-of-two", "noisy-keys", "one-head-swings", "rope-is-rotation"]
SHORT_SHAPES = ["one token", "odd", "odd width", "padding and alibi", "both ways", "no window"]
HALVES = ["odd", "padding and alibi", "wide heads", "last queries, longer"]  # in bfloat16 too
SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=2)
PROMPTS = [[4, 1, 9, 4], [12], [0, 7, 3, 3, 8, 11, 2]]


def main() -> None:
    request = json.loads(sys.argv[1])
    if request["compile_for"] is not None:  # the compiled path obeys the cap too
        native.MACHINES = (request["compile_for"],)
    found: dict[str, Any] = {"hardware": {**hardware.description(), "compiled": compiled()}}
    parts: dict[str, Callable[[Mapping[str, Any], Tick], Any]] = {
        "claims": claims,
        "kernels": kernels,
        "decoding": decoding,
        "documents": documents,
    }
    for part in request["parts"]:
        found[part] = parts[part](request, partial(_progress, part))
    say(found)


def compiled() -> str:
    """What our compiled path is here: the wider its vectors, the more instructions it may use."""
    reason = native.why_unavailable()
    return reason or f"{native.library(torch.float32).attnlab_lanes()} lanes of float32"


def _progress(part: str, text: str) -> None:
    say(f"{part}: {text}")


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def claims(request: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """Each claim is run, with its knob too: verdicts, and every measure."""
    found: dict[str, Any] = {}
    names = request["claims"] or (SHORT_CLAIMS if request["short"] else catalogue.names(quick=True))
    for number, name in enumerate(map(known, names), 1):
        tick(f"{number}/{len(names)} {name}")
        try:
            result = run_claim(name, catalogue.load(name, [f"seed={request['seed']}"]))
        except Exception as error:  # a finding like any other: on this machine it does not run
            found[name] = {
                "verdict": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
                "expected": registry.load("claim", name).about.expected,
                "measures": [],
            }
            continue
        found[name] = {
            "verdict": result.verdict,
            "expected": result.claim.about.expected,
            "knob_verdict": result.knob_evidence.verdict,
            "measures": [
                *_measures(result.evidence.measures, WHERE["measures"]),
                *_measures(result.evidence.outside, WHERE["outside"]),
                *_measures(result.knob_evidence.measures, WHERE["knob_measures"]),
            ],
        }
    return found


def known(name: str) -> str:
    """The name of a claim; `package.module:Class` is registered under the name of its class."""
    module, _, cls = name.partition(":")
    if cls:
        registry.register(registry.Option("claim", cls.lower(), name, f"of {module}"))
        return cls.lower()
    return name


def _measures(measures: Sequence[Measure], where: str) -> Iterator[dict[str, Any]]:
    for one in measures:
        yield {
            "what": where + one.what,
            "value": float(one.value),
            "rule": one.rule,
            "bound": float(one.bound),
            "met": one.met,
            "margin": margin(one),
        }


def margin(measure: Measure) -> float | None:
    """How far a number, or the nearer end of its interval, is from its bound.

    As a part of the larger of the two, so without a scale: 0.01 is a hundredth away, 0.5 a factor
    of two, 0.9 of ten. None where nothing but equality counts.
    """
    if measure.rule == "=":
        return None
    ends = [measure.value, measure.low, measure.high]
    return min(_distance(float(end), float(measure.bound)) for end in ends if end is not None)


def _distance(value: float, bound: float) -> float:
    """Of two numbers of one sign; across 0 there is no larger distance than all of it."""
    if math.isnan(value) or value == bound:
        return 0.0
    small, large = sorted((abs(value), abs(bound)))
    return 1.0 if value * bound <= 0 or math.isinf(large) else 1 - small / large


def kernels(request: Mapping[str, Any], tick: Tick) -> dict[str, float]:
    """Every path that can serve against the definition: the worst error as a part of its limit."""
    found = {}
    names = SHORT_SHAPES if request["short"] else list(SHAPES)
    for number, name in enumerate(names, 1):
        tick(f"{number}/{len(names)} {name}")
        problem = SHAPES[name]
        true = solve(problem, "reference")
        paths = [path for path in FAST_PATHS if refusal(problem, path) is None]
        limits = [limit_in_float64(true)] * len(true)
        for path in paths:
            found[f"{name}, {path}, float64"] = _part(solve(problem, path), true, limits)
        halves = name in HALVES and hardware.cpu_multiplies("bfloat16")
        for dtype in [torch.float32] + [torch.bfloat16] * halves:
            limits = limits_of_plain(solve(problem, "reference", dtype), true, dtype)
            for path in paths:
                if path != "sdpa":  # in these dtypes it is plain PyTorch itself
                    case = f"{name}, {path}, {str(dtype).removeprefix('torch.')}"
                    found[case] = _part(solve(problem, path, dtype), true, limits)
    return found


def _part(found: Sequence[Tensor], true: Sequence[Tensor], limits: Sequence[float]) -> float:
    pairs = zip(errors(found, true), limits, strict=True)
    return max(error / limit if limit else math.inf * bool(error) for error, limit in pairs)


def decoding(request: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """Token by token through every cache, against one pass over the whole text; greedy texts."""
    scores, schemes, heads = (
        [option.name for option in registry.options(kind)]
        for kind in ("score", "positions", "attention")
    )
    known = combinations()
    every = [one for one in product(scores, schemes, heads) if (one[2], one[0]) in known]
    if request["short"]:
        every = every[:: len(every) // 4]
    found: dict[str, Any] = {"errors": {}, "texts": {}}
    for number, (score, scheme, kind) in enumerate(every, 1):
        tick(f"{number}/{len(every)} {score}, {scheme}, {kind}")
        overrides = [f"score={score}", f"positions={scheme}", f"attention={kind}"]
        model: Transformer | None = None
        for window, caches in (("none", ["full"]), ("7", ["full", "ring"]), ("5,none", ["auto"])):
            try:
                model = _model(*overrides, f"window={window}")
            except ValueError:  # not every attention takes every window, score and position
                continue
            for cache in caches:
                case = f"{score}, {scheme}, {kind}, window {window}, {cache} cache"
                found["errors"][case] = _decoding_error(model, cache) / DECODED
        if model is None:
            continue
        case = f"{score}, {scheme}, {kind}"
        found["texts"][case] = generate(model, PROMPTS, tokens=16, sampling=Sampling(temperature=0))
    return found


def _model(*overrides: str) -> Transformer:
    rng = torch.Generator().manual_seed(0)
    model = config.override(SMALL, overrides).build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from the start, where everything is flat
            drawn = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter.copy_(drawn * 0.3)
    return model


@torch.no_grad()
def _decoding_error(model: Transformer, kind: str) -> float:
    tokens = torch.randint(13, (2, 27), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(kind)
    steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(tokens.shape[1])]
    return errors([torch.cat(steps, dim=1)], [model(tokens)])[0]


def documents(request: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """Whether theory.md and its pictures come out of the recorded outcomes as they are stored."""
    if not (DOCS / "theory.md").exists():
        return {"different": [], "compared": 0}
    tick("theory.md")
    text, pictures = document.document(record.read(DOCS))
    wanted = {"theory.md": text, **{f"theory/{name}": svg for name, svg in pictures.items()}}
    stored = {name: DOCS / name for name in wanted}
    different = [
        name
        for name, path in stored.items()
        if not path.exists() or path.read_text() != wanted[name]
    ]
    return {"different": different, "compared": len(wanted)}


if __name__ == "__main__":
    main()
