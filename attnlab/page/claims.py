"""Claims to look at and to touch: what is recorded of them, and one run with settings changed.

A run that somebody waits for tries fewer cases where the record's number takes longer than a
slider may (`live` of a setting), and says so. Claims that train run in a process of their own.

Settings that name a folder are not offered: nothing in a request is part of a path.
"""

import asyncio
import dataclasses
import json
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attnlab import config, registry
from attnlab.page.guard import Refused
from attnlab.theory import sources

KEPT = 256  # answers, of some 10 kB each
LONGEST_LIST = 8
KINDS: dict[Any, str] = {bool: "bool", int: "int", float: "float"}


@dataclass(frozen=True)
class Question:
    name: str
    claim: Any
    knob: bool

    @property
    def key(self) -> str:
        return json.dumps([self.name, config.to_dict(self.claim)], default=str)

    @property
    def asked(self) -> Any:
        return self.claim.turned() if self.knob else self.claim


class Claims:
    """The claims, and what they answered lately."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._training = False

    def listed(self) -> list[dict[str, Any]]:
        """All of them, as recorded; nothing is run."""
        return [self._entry(option.name) for option in registry.options("claim")]

    def questions(self) -> list[dict[str, Any]]:
        """Of the courses, with the claims that settle each."""
        options = [option.name for option in registry.options("claim")]
        settled = {name: registry.load("claim", name).about.questions for name in options}
        return [
            {
                "name": key,
                "asks": asks,
                "claims": [name for name in options if key in settled[name]],
                "unsettled": sources.UNSETTLED.get(key, ""),
            }
            for key, asks in sources.QUESTIONS.items()
        ]

    def question(self, name: str, body: Mapping[str, Any]) -> Question:
        """What a request asks, or a ValueError."""
        known = [option.name for option in registry.options("claim")]
        if name not in known:
            raise Refused(404, f"no claim is called {name[:80]!r}; {registry.suggest(name, known)}")
        wanted = body.get("settings", {})
        knob = body.get("knob", False)
        if not isinstance(wanted, dict) or not isinstance(knob, bool):
            raise ValueError('send {"settings": {…}, "knob": true or false}')
        cls = registry.load("claim", name)
        offered = {one["name"]: one for one in settings_of(cls)}
        for key, value in wanted.items():
            if key not in offered:
                hint = registry.suggest(key, list(offered))
                raise ValueError(f"{key[:80]!r} is no setting of {name}; {hint}")
            check(offered[key], value)
        fixed = {"runs": str(self.root)} if cls.trained else live(cls)
        claim = config.from_dict(cls, {**fixed, **wanted})
        return Question(name, claim, knob)

    def known(self, question: Question) -> dict[str, Any] | None:
        """The answer, if it was given lately."""
        found = self._answers.get(_key(question))
        if found is not None:
            self._answers.move_to_end(_key(question))
        return found

    def answer(self, question: Question) -> dict[str, Any]:
        """Run now; for the thread that computes."""
        found = self.known(question)
        return found if found is not None else self._keep(question, answered(question))

    def warm_up(self) -> Iterator[None]:
        """A run at each step, so that the first slider is as quick as the others."""
        for option in registry.options("claim"):
            if registry.load("claim", option.name).trained:
                continue
            for knob in (False, True):
                self.answer(self.question(option.name, {"knob": knob}))
                yield None

    async def trained(self, question: Question) -> dict[str, Any]:
        """Minutes, in a process of its own; it ends when nobody waits any more."""
        if self._training:
            raise Refused(429, "a claim is being trained already; try again when it is done")
        self._training = True
        try:
            return self._keep(question, await _in_child(question))
        finally:
            self._training = False

    def _keep(self, question: Question, answer: dict[str, Any]) -> dict[str, Any]:
        self._answers[_key(question)] = answer
        while len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        return answer

    def _entry(self, name: str) -> dict[str, Any]:
        cls = registry.load("claim", name)
        about, known = cls.about, self.known(self.question(name, {}))
        return {
            "name": name,
            "summary": registry.find("claim", name).summary,
            "statement": about.statement,
            "formula": about.formula,
            "verdict": about.expected,
            "expected": about.expected,
            "condition": about.condition or None,
            "questions": [f"{key}: {sources.QUESTIONS[key]}" for key in about.questions],
            "evidence": "trained" if cls.trained else known["evidence"] if known else None,
            "trained": cls.trained,
            "knob": {"words": about.knob.words, "changes": _plain(about.knob.changes)},
            "settings": settings_of(cls),
            "seconds": known["seconds"] if known else None,
        }


def _key(question: Question) -> str:
    return f"{question.knob} {question.key}"


def settings_of(cls: Any) -> list[dict[str, Any]]:
    """The settings that a page can change, with their ranges. `record`: what the record has."""
    hints, found = get_type_hints(cls), []
    for one in dataclasses.fields(cls):
        kind, choices = _kind(hints[one.name])
        if kind is None:
            continue
        low, high = one.metadata.get("range", (None, None))
        most = one.metadata.get("live")
        found.append(
            {
                "name": one.name,
                "kind": kind,
                "value": _plain(live(cls).get(one.name, one.default)),
                "record": _plain(one.default),
                "low": low,
                "high": high if most is None else most,
                "choices": choices,
                "about": one.metadata.get("about", ""),
            }
        )
    return found


def live(cls: Any) -> dict[str, Any]:
    """The settings of which less is tried on the page than for the record."""
    most = {one: one.metadata.get("live") for one in dataclasses.fields(cls)}
    return {one.name: it for one, it in most.items() if it is not None and it < one.default}


def _kind(hint: Any) -> tuple[str | None, list[str] | None]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "text", list(arguments)
    if origin in (Union, types.UnionType) and set(arguments) == {int, type(None)}:
        return "int?", None
    if origin is tuple and arguments == (int, ...):
        return "ints", None
    return KINDS.get(hint), None


def check(offered: Mapping[str, Any], value: Any) -> None:
    """The page's own bounds; the claim checks the rest."""
    name, low, high = offered["name"], offered["low"], offered["high"]
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        raise ValueError(f"{name} has {len(value)} entries; use {LONGEST_LIST} or fewer")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and high is not None and not low <= value <= high:
        raise ValueError(f"{name} is {value}; on the page it goes from {low} to {high}")


def answered(question: Question) -> dict[str, Any]:
    """One run, as JSON."""
    from attnlab.experiments.progress import Progress
    from attnlab.theory.page import chance_text, kept
    from attnlab.theory.settle import Outcome

    claim = question.asked
    began = time.perf_counter()
    if claim.trained:
        claim.prepare(Progress())
    evidence = claim.run()
    outcome = Outcome(name=question.name, claim=claim, evidence=evidence, turned=evidence)
    about = claim.about
    plain = {key: it for key, it in kept(outcome).items() if not key.startswith("knob_")}
    offered = {one["name"] for one in settings_of(type(claim))}
    return {
        **plain,
        "settings": {name: it for name, it in plain["settings"].items() if name in offered},
        "knob": {"words": about.knob.words, "changes": _plain(about.knob.changes)},
        "turned": question.knob,
        "derivation": about.derivation,
        "error_rates": chance_text(plain["chance"], plain["verdict"]) if plain["chance"] else "",
        "remark": about.remark,
        "note": _fewer(question.claim),
        "seconds": time.perf_counter() - began,
    }


def _fewer(claim: Any) -> str:
    """What was tried less than for the record."""
    record = {one.name: one.default for one in dataclasses.fields(claim)}
    less = [
        f"{name} {getattr(claim, name):,} of {record[name]:,}"
        for name in live(claim)
        if getattr(claim, name) is not None and getattr(claim, name) < record[name]
    ]
    return f"fewer cases than the record, to answer at once: {', '.join(less)}" if less else ""


async def _in_child(question: Question) -> dict[str, Any]:
    plain = {"name": question.name, "settings": config.to_dict(question.claim)}
    given = json.dumps({**plain, "knob": question.knob}).encode()
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
        raise ValueError(f"{question.name} could not be trained: {' '.join(last)[:300]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def main() -> None:
    """The child: a question on standard input, its answer as the last line."""
    given = json.loads(sys.stdin.buffer.read())
    claim = config.from_dict(registry.load("claim", given["name"]), given["settings"])
    print(json.dumps(answered(Question(given["name"], claim, given["knob"])), allow_nan=False))


if __name__ == "__main__":
    main()
