"""Claims on the page: what is recorded of them, and runs with changed settings.

The page runs fewer cases than the record where the record's number is too slow for a slider
(`live` of a setting), and says so. Claims that train models take minutes: the page shows their
recorded results, and trains them in a child process when a person asks for it.

Settings that name a folder are not offered: nothing in a request is part of a path.
"""

import asyncio
import dataclasses
import json
import sys
import time
import types
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

from attnlab import config, names, registry
from attnlab.page.guard import Refused
from attnlab.theory import catalogue, mathml, record, sources
from attnlab.theory.claim import Claim
from attnlab.theory.document import error_rates_text
from attnlab.theory.record import Outcome
from attnlab.theory.result import ClaimResult, headline

KEPT = 256  # answers, of some 10 kB each
LONGEST_LIST = 8
UNBRACKETED = {ord("("): None, ord(")"): None}  # people type "A4 1c" for "A4 1(c)"
KINDS: dict[object, str] = {bool: "bool", int: "int", float: "float"}
Reply = dict[str, object]  # JSON


@dataclass(frozen=True)
class Experiment:
    """A claim with the settings of a request, to be run with its knob turned or not."""

    name: str
    settings: Claim  # before the knob changes them
    knob: bool

    @property
    def claim(self) -> Claim:
        return self.settings.with_knob() if self.knob else self.settings

    @property
    def key(self) -> str:
        return json.dumps([self.name, self.knob, config.to_dict(self.settings)], default=str)


class Control(TypedDict):
    """A setting that the page can change."""

    name: str
    kind: str
    value: object  # at first
    record: object  # of the recorded run
    low: float | None
    high: float | None
    choices: list[str] | None
    about: str


class Claims:
    """The claims, and a cache of their newest answers."""

    def __init__(self, root: Path, docs: Path = record.DOCS) -> None:
        self.root, self._docs = root, docs
        self._answers: OrderedDict[str, Reply] = OrderedDict()
        self._training = False

    def list_all(self) -> list[Reply]:
        """All claims; nothing is run."""
        return [self._entry(name) for name in catalogue.names()]

    def questions(self) -> list[Reply]:
        """The questions of the courses, with the claims that settle each."""
        return [
            {
                "name": key,
                "course": sources.COURSES[key.split()[0]],
                "asks": sources.QUESTIONS[key],
                "claims": claims,
                "unsettled": sources.UNSETTLED.get(key, ""),
            }
            for key, claims in catalogue.by_question().items()
        ]

    def experiment(self, name: str, body: Mapping[str, Any]) -> Experiment:
        """What a request asks for; ValueError if it is no valid request."""
        known = catalogue.names()
        if name not in known:
            raise Refused(404, f"unknown claim {name[:80]!r}; {registry.suggest(name, known)}")
        wanted = body.get("settings", {})
        knob = body.get("knob", False)
        if not isinstance(wanted, dict) or not isinstance(knob, bool):
            raise ValueError('send {"settings": {…}, "knob": true or false}')
        cls = registry.load("claim", name)
        offered = {one["name"]: one for one in controls(cls)}
        for key, value in wanted.items():
            if key not in offered:
                hint = registry.suggest(key, list(offered))
                raise ValueError(f"{key[:80]!r} is no setting of {name}; {hint}")
            check(offered[key], value)
        fixed = {"runs": str(self.root)} if cls.trained else live(cls)
        return Experiment(name, config.from_dict(cls, {**fixed, **wanted}), knob)

    def known(self, experiment: Experiment) -> Reply | None:
        """The answer from the cache."""
        found = self._answers.get(experiment.key)
        if found is not None:
            self._answers.move_to_end(experiment.key)
        return found

    def recorded(self, experiment: Experiment) -> Reply | None:
        """The answer from the record, which has the default settings, without and with the knob.

        None for other settings, and where the package is installed without its documents.
        """
        outcome = self._record.get(experiment.name)
        if outcome is None or _settings(experiment.settings) != _without_runs(outcome["settings"]):
            return None
        if not experiment.knob:
            return _reply(experiment, outcome)
        return {**_reply(experiment, _with_knob(outcome)), "trials": None, "picture": None}

    @cached_property
    def _record(self) -> dict[str, Outcome]:
        return {one["name"]: one for one in record.read(self._docs)["outcomes"]}

    def answer(self, experiment: Experiment) -> Reply:
        """From the cache, or run now; for the thread that computes."""
        found = self.known(experiment)
        return found if found is not None else self._keep(experiment, run(experiment))

    def warm_up(self) -> Iterator[None]:
        """Run one claim at each step, so that the first slider is as quick as the others."""
        for name in catalogue.names(quick=True):
            for knob in (False, True):
                self.answer(self.experiment(name, {"knob": knob}))
                yield None

    async def train(self, experiment: Experiment) -> Reply:
        """Minutes, in a child process; it is killed when the client disconnects."""
        if self._training:
            raise Refused(429, "a claim is being trained already; try again when it is done")
        self._training = True
        try:
            return self._keep(experiment, await _in_child(experiment))
        finally:
            self._training = False

    def _keep(self, experiment: Experiment, answer: Reply) -> Reply:
        self._answers[experiment.key] = answer
        while len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        return answer

    def _words(self, name: str) -> str:
        """Everything that the page displays of a claim, folded, to be searched."""
        cls = registry.load("claim", name)
        about, outcome = cls.about, self._record.get(name)
        shown = [
            *(name, names.title(name), registry.find("claim", name).summary),
            *(about.statement, about.formula, about.condition, about.expected, about.knob.words),
            *(about.derivation, about.remark),
            *(
                f"{key} {key.translate(UNBRACKETED)} {sources.QUESTIONS[key]}"
                for key in about.questions
            ),
            *(f"{it['name']} {it['about']}" for it in controls(cls)),
            *(text for answer in about.answers for text in dataclasses.astuple(answer)),
            *(_texts(outcome) if outcome is not None else ()),
        ]
        return fold(" ".join(map(str, shown)))

    def _entry(self, name: str) -> Reply:
        cls = registry.load("claim", name)
        about, standard = cls.about, self.experiment(name, {})
        known = self.known(standard)
        return {
            "name": name,
            "title": names.title(name),
            "summary": registry.find("claim", name).summary,
            "statement": about.statement,
            "formula": about.formula,
            "typeset": mathml.formula(about.formula),
            "words": self._words(name),
            "verdict": about.expected,
            "expected": about.expected,
            "condition": about.condition or None,
            "questions": [{"name": it, "asks": sources.QUESTIONS[it]} for it in about.questions],
            "evidence": "trained" if cls.trained else known["evidence"] if known else None,
            "trained": cls.trained,
            "recorded": cls.trained and self.recorded(standard) is not None,
            "knob": _knob(cls),
            "settings": controls(cls),
            "seconds": known["seconds"] if known else None,
        }


def fold(text: str) -> str:
    """Text in which αᵢ is found as αi and GQA as gqa; the page folds what is typed alike."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().replace("`", "").split())


def _texts(plain: object) -> Iterator[str]:
    """All text in plain data; names of fields are none."""
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, Mapping):
        yield from (text for one in plain.values() for text in _texts(one))
    elif isinstance(plain, list):
        yield from (text for one in plain for text in _texts(one))


def controls(cls: type[Claim]) -> list[Control]:
    """The settings that the page can change, with their ranges."""
    hints, found = get_type_hints(cls), list[Control]()
    for one in dataclasses.fields(cls):
        kind, choices = _kind(hints[one.name])
        if kind is None:
            continue
        limits: config.Limits = one.metadata.get("limits", config.Limits())
        most = one.metadata.get("live")
        found.append(
            {
                "name": one.name,
                "kind": kind,
                "value": _plain(live(cls).get(one.name, one.default)),
                "record": _plain(one.default),
                "low": limits.low,
                "high": limits.high if most is None else most,
                "choices": choices,
                "about": one.metadata.get("about", ""),
            }
        )
    return found


def live(cls: type[Claim]) -> dict[str, Any]:
    """The settings that are smaller on the page than in the record."""
    most = {one: one.metadata.get("live") for one in dataclasses.fields(cls)}
    return {one.name: it for one, it in most.items() if it is not None and it < one.default}


def _kind(hint: object) -> tuple[str | None, list[str] | None]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "text", list(arguments)
    if origin in (Union, types.UnionType) and set(arguments) == {int, type(None)}:
        return "int?", None
    if origin is tuple and arguments == (int, ...):
        return "ints", None
    return KINDS.get(hint), None


def check(offered: Control, value: object) -> None:
    """The page's own bounds; the claim checks the rest."""
    name, low, high = offered["name"], offered["low"], offered["high"]
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        raise ValueError(f"{name} has {len(value)} entries; use {LONGEST_LIST} or fewer")
    if low is None or high is None or isinstance(value, bool):
        return
    if isinstance(value, int | float) and not low <= value <= high:
        raise ValueError(f"{name} is {value}; on the page use {low} to {high}")


def run(experiment: Experiment) -> Reply:
    """Run the claim once, with its knob turned or not."""
    from attnlab.experiments.progress import Progress

    claim = experiment.claim
    began = time.perf_counter()
    claim.prepare(Progress())
    evidence = claim.run()
    result = ClaimResult(
        name=experiment.name, claim=claim, evidence=evidence, knob_evidence=evidence
    )
    return _reply(experiment, record.outcome_of(result), time.perf_counter() - began)


def _reply(experiment: Experiment, outcome: Outcome, seconds: float | None = None) -> Reply:
    """`seconds` that the run took; None if the outcome is a recorded one."""
    about, rates = experiment.settings.about, outcome["error_rates"]
    names = {one["name"] for one in controls(type(experiment.settings))}
    return {
        **{key: it for key, it in outcome.items() if not key.startswith("knob_")},
        "settings": {name: it for name, it in outcome["settings"].items() if name in names},
        "knob": _knob(type(experiment.settings)),
        "turned": experiment.knob,
        "derivation": about.derivation,
        "error_rates": error_rates_text(rates, outcome["verdict"]) if rates else "",
        "remark": about.remark,
        "note": _fewer(experiment.settings) if seconds is not None else "",
        "recorded": seconds is None,
        "seconds": seconds,
    }


def _with_knob(outcome: Outcome) -> Outcome:
    """What is recorded of the run with the knob: its verdict and its measures."""
    knob: Outcome = {
        **outcome,
        **headline(outcome["knob_measures"][0]),
        "verdict": outcome["knob_verdict"],
        "measures": outcome["knob_measures"],
        "outside": [],
        "error_rates": None,
        "answers": [],
        "settings": outcome["knob"],
        "details": [],
    }
    return knob


def _knob(cls: type[Claim]) -> Reply:
    return {"words": cls.about.knob.words, "changes": _plain(cls.about.knob.changes)}


def _settings(claim: Claim) -> Mapping[str, object]:
    return _without_runs(config.to_dict(claim))


def _without_runs(settings: Mapping[str, object]) -> dict[str, object]:
    """Where trainings are stored does not change a result."""
    return {name: value for name, value in settings.items() if name != "runs"}


def _fewer(claim: Claim) -> str:
    """Which settings are smaller than in the record."""
    default = {one.name: one.default for one in dataclasses.fields(claim)}
    less = [
        f"{name} {getattr(claim, name):,} of {default[name]:,}"
        for name in live(type(claim))
        if getattr(claim, name) is not None and getattr(claim, name) < default[name]
    ]
    return f"fewer cases than the record, to answer at once: {', '.join(less)}" if less else ""


async def _in_child(experiment: Experiment) -> Reply:
    plain = {"name": experiment.name, "settings": config.to_dict(experiment.settings)}
    given = json.dumps({**plain, "knob": experiment.knob}).encode()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"{experiment.name} could not be trained: {' '.join(last)[:300]}")
    found: Reply = json.loads(out.splitlines()[-1])
    return found


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def main() -> None:
    """The child: an experiment as JSON on standard input, its reply as the last line."""
    given = json.loads(sys.stdin.buffer.read())
    claim = config.from_dict(registry.load("claim", given["name"]), given["settings"])
    print(json.dumps(run(Experiment(given["name"], claim, given["knob"])), allow_nan=False))


if __name__ == "__main__":
    main()
