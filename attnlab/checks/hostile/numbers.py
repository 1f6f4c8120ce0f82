"""JSON that is too deep, too large, of other types, or true to its type and absurd."""

import json
import math
from collections.abc import Callable
from typing import Any

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import content_of, edited
from attnlab.checks.hostile.trial import (
    AGAIN,
    DECIDES,
    EITHER,
    EVALUATE,
    GENERATE,
    LIST,
    RESUME,
    Act,
    Family,
    Place,
    Plant,
    Trial,
    command,
)

DEEP = b"[" * 200_000
DEEP_OBJECT = b'{"model":' * 100_000
DIGITS = b'{"steps": ' + b"9" * 100_000 + b"}"
CONFIG, STATE, TOKENIZER = (f"checkpoint/{name}.json" for name in ("config", "state", "tokenizer"))
DETAILS = acts.page("/api/runs", "/api/runs/20200101-000000-tiny-abcdef")
CURVE = acts.page("/api/runs/20200101-000000-tiny-abcdef/curve")
CONTRACT = command("audit", "x.py:X", "--contract", "given.json")
SETTINGS = command("train", "tiny", "--config", "given.json", "--runs", "runs")

PASSED = {"line": "x.py:X", "family": "code", "verdict": "pass", "code": "", "checks": [{}]}
LOSSES: list[Any] = [None, "x", [], {}, True, 1e308, -1e308]


def inside(*names: str, value: Any) -> Callable[[Any], Any]:
    """The same with another value at a place."""

    def edit(plain: Any) -> object:
        if not names:
            return value
        found = plain
        for name in names[:-1]:
            found = found[name]
        found[names[-1]] = value
        return plain

    return edit


def given(content: bytes) -> Plant:
    return lambda place: place.write("given.json", content)


def lines(name: str, *rows: Any) -> Plant:
    """Lines behind those that are there; a text is written as it is."""

    def plant(place: Place) -> None:
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows)
        with (place.run / f"{name}.jsonl").open("a") as file:
            file.write(text)

    return plant


def whole(name: str, content: bytes, act: Act, what: str, codes: tuple[int, ...] = EITHER) -> Trial:
    readable = content.startswith(b'{"corpus"')
    copied = name == "config.json" and act is RESUME
    return Trial(
        name=f"{name} is {what}",
        plant=content_of(name, content),
        act=act,
        codes=codes,
        said=(DECIDES if readable else AGAIN) if copied else "",
    )


def value(name: str, act: Act, at: str, it: Any, codes: tuple[int, ...] = (2,)) -> Trial:
    shown = str(it) if len(str(it)) < 40 else f"{str(it)[:20]}…"
    names = at.split(".")
    return Trial(
        name=f"{name}: {at} is {shown}",
        plant=edited(name, inside(*names, value=it)),
        act=act,
        codes=codes,
        said=(DECIDES if math.isfinite(it) else AGAIN) if name == "config.json" else "",
    )


def naive_silence(place: Place) -> None:
    """Goes on from the checkpoint, whatever is beside it."""
    json.loads((place.checkpoint / "config.json").read_bytes())


def naive_size(place: Place) -> None:
    """Makes a table as large as a setting says."""
    import numpy as np

    settings = json.loads((place.checkpoint / "config.json").read_bytes())
    np.ones(settings["model"]["context"], dtype=np.uint8)


FAMILY = Family(
    name="numbers",
    about="JSON that is too deep, too large, or of other types",
    trials=[
        whole("config.json", DEEP, RESUME, "200,000 lists deep", (0,)),
        whole("config.json", DEEP_OBJECT, LIST, "100,000 objects deep"),
        whole("config.json", DIGITS, RESUME, "a number of 100,000 digits", (0,)),
        whole("config.json", b"[]", RESUME, "a list", (0,)),
        whole("config.json", b"null", RESUME, "null", (0,)),
        whole("config.json", b'{"steps": NaN}', DETAILS, "NaN on the page"),
        whole("config.json", b"\xff\xfe{\x00}\x00", LIST, "UTF-16"),
        whole("config.json", b'{"a": "\xff\xff"}', RESUME, "not UTF-8", (0,)),
        whole("config.json", b'{"corpus": {"name": "\\ud800"}}', RESUME, "half a letter", (0,)),
        whole("config.json", b" " * (8 << 20), DETAILS, "8 MiB of nothing, on the page"),
        whole("manifest.json", b"[]", RESUME, "a list"),
        whole("manifest.json", DEEP, DETAILS, "200,000 lists deep, on the page"),
        whole("result.json", b"3", LIST, "a number"),
        whole("result.json", DEEP, DETAILS, "200,000 lists deep, on the page"),
        whole("checkpoint/manifest.json", DEEP, GENERATE, "200,000 lists deep", (2,)),
        whole("checkpoint/manifest.json", b"[]", GENERATE, "a list", (2,)),
        whole(CONFIG, DEEP, GENERATE, "200,000 lists deep", (2,)),
        whole(CONFIG, b"[]", GENERATE, "a list", (2,)),
        whole(TOKENIZER, DEEP_OBJECT, GENERATE, "100,000 objects deep", (2,)),
        whole(TOKENIZER, b"[]", GENERATE, "a list", (2,)),
        whole(STATE, b"[]", RESUME, "a list", (2,)),
        whole(STATE, b"{}", RESUME, "empty", (2,)),
        value(CONFIG, GENERATE, "model.width", 10**12),
        value(CONFIG, GENERATE, "model.depth", 10**9),
        value(CONFIG, GENERATE, "model.context", 10**15),
        value(CONFIG, GENERATE, "model.vocabulary", 10**12),
        value(CONFIG, GENERATE, "model.attention.heads", 0),
        value(CONFIG, GENERATE, "model.width", "8; import os"),
        value(CONFIG, GENERATE, "model.name", "os:system"),
        value(CONFIG, GENERATE, "model.attention.name", "../../evil"),
        value(CONFIG, GENERATE, "model", [[]]),
        value(CONFIG, EVALUATE, "corpus.people", 10**12),
        value("config.json", RESUME, "batch", 10**15, (0,)),
        value("config.json", RESUME, "steps", -1, (0,)),
        value("config.json", RESUME, "optimiser.rate", 1e999, (0,)),
        value("config.json", RESUME, "optimiser.rate", 0.5, (0,)),
        value(STATE, RESUME, "step", 10**30, EITHER),
        value(STATE, RESUME, "step", "2", EITHER),
        value(STATE, RESUME, "seconds", -1e300, EITHER),
        value(STATE, RESUME, "seconds", float("nan"), EITHER),
        value(STATE, RESUME, "best_loss", "low", EITHER),
        value(STATE, RESUME, "worse", None, EITHER),
        value(TOKENIZER, GENERATE, "alphabet", ["a"] * 5),
        value(TOKENIZER, GENERATE, "alphabet", ["\ud800"]),
        value(TOKENIZER, GENERATE, "alphabet", [{}]),
        value(TOKENIZER, GENERATE, "special", "yes"),
        value(TOKENIZER, GENERATE, "name", "__import__"),
        Trial(name="--contract, deep", plant=given(DEEP), act=CONTRACT),
        Trial(
            name="--contract, a key twice",
            plant=given(b'{"causal": true, "causal": false, "heads": -1}'),
            act=CONTRACT,
        ),
        Trial(name="--contract, NaN", plant=given(b'{"scale": NaN}'), act=CONTRACT),
        Trial(name="--config, deep", plant=given(DEEP_OBJECT), act=SETTINGS),
        Trial(name="--config, digits", plant=given(DIGITS), act=SETTINGS),
        Trial(
            name="the result of a job, deep",
            plant=lambda place: acts.damaged_part(place, DEEP),
            act=acts.use_workspace,
            codes=EITHER,
        ),
        Trial(
            name="the record of claims, deep",
            plant=lambda place: place.write("docs/theory/outcomes.json", DEEP),
            act=acts.read_record,
        ),
        Trial(
            name="rows of a sweep, deep",
            plant=lambda place: (
                place.write("list.txt", "x.py:X\n"),
                place.write("rows.jsonl", DEEP + b"\n"),
            ),
            act=command("audit", "@list.txt", "--out", "rows.jsonl", "--resume"),
        ),
        Trial(
            name="rows of a sweep that say pass",
            plant=lambda place: (
                place.write("list.txt", "x.py:X\n"),
                place.write("rows.jsonl", '{"line": "x.py:X", "verdict": "pass"}\n'),
            ),
            act=command("audit", "@list.txt", "--out", "rows.jsonl", "--resume"),
            forbidden="1 pass",
        ),
        Trial(
            name="rows of a sweep that say pass of a file that is not there",
            plant=lambda place: (
                place.write("list.txt", "x.py:X\n"),
                place.write("rows.jsonl", json.dumps(PASSED) + "\n"),
            ),
            act=command("audit", "@list.txt", "--out", "rows.jsonl", "--resume"),
            verdicts=True,
            forbidden="1 pass",
        ),
        Trial(
            name="a log with steps of 10^400",
            plant=lines("metrics", '{"step": 1' + "0" * 400 + ', "loss": 1.0}'),
            act=LIST,
            codes=EITHER,
        ),
        Trial(
            name="a log with steps of 10^400, on the page",
            plant=lines("metrics", '{"step": 1' + "0" * 400 + ', "loss": 1.0}'),
            act=CURVE,
            codes=EITHER,
        ),
        Trial(
            name="a log with losses that are none",
            plant=lines(
                "eval",
                *({"step": n, "loss": it} for n, it in enumerate(LOSSES)),
                '{"step": 9, "loss": NaN}',
                '{"step": 9, "loss": -Infinity}',
            ),
            act=GENERATE,
            codes=EITHER,
        ),
        Trial(
            name="a log that is deep, resumed",
            plant=lines("metrics", "[" * 200_000),
            act=RESUME,
            codes=EITHER,
            said="damaged and left out",
        ),
        Trial(
            name="a log with a line of 40 MB, on the page",
            plant=lines("metrics", "9" * 40_000_000),
            act=CURVE,
            codes=EITHER,
        ),
        Trial(
            name="a log with steps below zero, resumed",
            plant=lines("metrics", {"step": -5, "loss": 1.0}, {"step": True, "loss": 1.0}),
            act=RESUME,
            codes=EITHER,
        ),
        Trial(
            name="a reader that says nothing of a difference",
            plant=edited("config.json", inside("optimiser", "rate", value=0.5)),
            act=naive_silence,
            codes=EITHER,
            said=DECIDES,
            caught="silent",
        ),
        Trial(
            name="a reader that knows no depth",
            plant=content_of("config.json", DEEP),
            act=lambda place: json.loads((place.run / "config.json").read_bytes()),
            caught="traceback",
        ),
        Trial(
            name="a reader that believes sizes",
            plant=edited(CONFIG, inside("model", "context", value=3_000_000_000)),
            act=naive_size,
            caught="exhausted",
        ),
    ],
)
