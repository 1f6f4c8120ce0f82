"""What is no plain file: FIFOs, sockets, devices, folders under the names of files."""

from pathlib import Path

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import path_in, replace
from attnlab.checks.hostile.trial import (
    AGAIN,
    EITHER,
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

DETAILS = acts.page(
    "/api/runs", "/api/runs/20200101-000000-tiny-abcdef",
    "/api/runs/20200101-000000-tiny-abcdef/curve",
)  # fmt: skip
REPORTS = acts.page("/api/reports", "/report/study-small-000000")
ZERO = Path("/dev/zero")
IN_RUN: list[tuple[str, str, Act]] = [
    ("config.json", "FIFO", LIST),
    ("config.json", "FIFO", RESUME),
    ("config.json", "socket", RESUME),
    ("config.json", "folder", LIST),
    ("lock", "FIFO", RESUME),
    ("lock", "folder", RESUME),
    ("lock", "socket", LIST),
    ("metrics.jsonl", "FIFO", LIST),
    ("metrics.jsonl", "FIFO", RESUME),
    ("metrics.jsonl", "folder", RESUME),
    ("eval.jsonl", "FIFO", GENERATE),
    ("samples.jsonl", "FIFO", DETAILS),
    ("manifest.json", "FIFO", DETAILS),
    ("manifest.json", "folder", RESUME),
    ("result.json", "FIFO", LIST),
    ("checkpoint/model.safetensors", "FIFO", GENERATE),
    ("checkpoint/model.safetensors", "folder", GENERATE),
    ("checkpoint/manifest.json", "FIFO", RESUME),
    ("checkpoint/manifest.json", "socket", GENERATE),
    ("checkpoint/state.json", "zero", RESUME),
    ("checkpoints", "FIFO", RESUME),
]


def in_run(name: str, kind: str) -> Plant:
    def plant(place: Place) -> None:
        path = place.run / path_in(place, name)
        replace(path, "link" if kind == "zero" else kind, ZERO)

    return plant


def in_folder(name: str, kind: str = "FIFO") -> Plant:
    """A file that a person names."""

    def plant(place: Place) -> None:
        place.write("list.txt", "x.py:X\n")
        place.write("model/model.safetensors", b"")
        place.write("model/config.json", "{}")
        place.write("texts/a.txt", "a text\n" * 90)
        replace(place.folder / name, "link" if kind == "zero" else kind, ZERO)

    return plant


def in_study(name: str) -> Plant:
    def plant(place: Place) -> None:
        folder = place.copy("study/runs", "runs") / "study-small-000000"
        replace(folder / name, "FIFO", ZERO)

    return plant


def in_shards(name: str, kind: str) -> Plant:
    return lambda place: replace(place.copy("shards", "shards") / name, kind, ZERO)


def unreadable(place: Place) -> None:
    (place.run / "config.json").chmod(0)
    (place.checkpoint / "manifest.json").chmod(0)


NAMED: list[tuple[str, str, Act]] = [
    ("--contract, FIFO", "given", command("audit", "x.py:X", "--contract", "given")),
    ("--config, FIFO", "given", command("train", "tiny", "--config", "given")),
    ("text, FIFO", "given", command("train", "tiny", "data=given", "steps=1")),
    ("a list of targets, FIFO", "given", command("audit", "@given")),
    ("rows to resume, FIFO", "given", command("audit", "@list.txt", "--out", "given", "--resume")),
    ("code to audit, FIFO", "given.py", command("audit", "given.py:X", "--timeout", "50")),
    ("--html, FIFO", "given", command("audit", "x.py:X", "--html", "given")),
    ("--sarif, FIFO", "given", command("audit", "x.py:X", "--sarif", "given")),
    ("--repro, FIFO", "given", command("audit", "x.py:X", "--repro", "given")),
    ("--predict, FIFO", "given", command("evaluate", "{run}", "--predict", "given")),
    ("config.json of a model's folder, FIFO", "model/config.json", command("audit", "hf:model")),
    ("the folder of runs, FIFO", "given", command("train", "tiny", "--runs", "given", "steps=1")),
]
FAMILY = Family(
    name="special",
    about="FIFOs, sockets, devices and folders in place of files",
    trials=[
        *(
            Trial(
                name=f"{name} is a {kind}, {n}",
                plant=in_run(name, kind),
                act=act,
                codes=EITHER,
                said=AGAIN if name == "config.json" and act is RESUME else "",
            )
            for n, (name, kind, act) in enumerate(IN_RUN)
        ),
        *(Trial(name=name, plant=in_folder(path), act=act) for name, path, act in NAMED),
        Trial(
            name="text from /dev/zero",
            plant=lambda place: place.run,
            act=command("train", "tiny", "data=/dev/zero", "steps=1"),
        ),
        Trial(
            name="text from a folder with a FIFO",
            plant=in_folder("texts/b.txt"),
            act=command("train", "tiny", "data=texts", "steps=1", "device=cpu"),
            codes=EITHER,
        ),
        Trial(
            name="--contract is /dev/zero",
            plant=in_folder("given", "zero"),
            act=command("audit", "x.py:X", "--contract", "given"),
        ),
        *(
            Trial(
                name=f"{name} of a study is a FIFO",
                plant=in_study(name),
                act=acts.use_workspace,
                codes=EITHER,
            )
            for name in ("parts/one.json", "settings.json", "lock")
        ),
        *(
            Trial(
                name=f"{name} of a study is a FIFO, on the page",
                plant=in_study(name),
                act=REPORTS,
                codes=EITHER,
            )
            for name in ("report.html", "report.md")
        ),
        *(
            Trial(
                name=f"{name} of shards is a {kind}",
                plant=in_shards(name, kind),
                act=acts.open_shards,
                codes=EITHER,
            )
            for name, kind in (
                ("index.json", "FIFO"),
                ("00000.tokens", "FIFO"),
                ("index.json", "folder"),
            )
        ),
        Trial(
            name="the record of claims is a FIFO",
            plant=lambda place: replace(place.folder / "docs/theory/outcomes.json", "FIFO", ZERO),
            act=acts.read_record,
        ),
        Trial(name="files that may not be read", plant=unreadable, act=GENERATE, codes=EITHER),
        Trial(
            name="opening a FIFO",
            plant=in_run("config.json", "FIFO"),
            act=lambda place: (place.run / "config.json").read_bytes(),
            patience=3,
            caught="hung",
        ),
        Trial(
            name="reading a device",
            plant=in_run("config.json", "zero"),
            act=lambda place: (place.run / "config.json").open("rb").read(2 << 30),
            caught="exhausted",
        ),
    ],
)
