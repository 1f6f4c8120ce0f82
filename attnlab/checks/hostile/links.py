"""Links under the names of files and folders that we read or write: none is followed."""

import shutil

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import path_in, replace
from attnlab.checks.hostile.trial import (
    EITHER,
    GENERATE,
    LIST,
    RESUME,
    Act,
    Family,
    Place,
    Plant,
    Trial,
    by_pid,
    command,
)

LOGS = ("metrics.jsonl", "eval.jsonl", "speed.jsonl", "samples.jsonl", "held.jsonl")
WRITTEN = ("lock", "config.json", "manifest.json", "result.json", "tokenizer.json", *LOGS)
CHECKPOINT = ("model.safetensors", "optimiser.safetensors", "state.json", "manifest.json")
DETAILS = acts.page(
    "/api/runs", "/api/runs/20200101-000000-tiny-abcdef",
    "/api/runs/20200101-000000-tiny-abcdef/curve",
)  # fmt: skip
STUDY = ("settings.json", "results.json", "report.html", "report.md", "lock", "parts/one.json")
STUDY_FOLDERS = ("parts", "runs", "pictures")


def in_run(name: str, kind: str = "link", to: str = "precious.txt") -> Plant:
    def plant(place: Place) -> None:
        (place.run / "result.json").unlink()  # unfinished, so that it is resumed
        replace(place.run / path_in(place, name), kind, place.victims / to)

    return plant


def in_study(name: str, kind: str = "link", to: str = "precious.txt") -> Plant:
    def plant(place: Place) -> None:
        folder = place.copy("study/runs", "runs") / "study-small-000000"
        replace(folder / name, kind, place.victims / to)

    return plant


def in_shards(name: str, to: str = "precious.txt") -> Plant:
    def plant(place: Place) -> None:
        replace(place.copy("shards", "shards") / name, "link", place.victims / to)
        if name != "index.json":  # so that they are made again
            (place.folder / "shards" / "00001.tokens").write_bytes(b"")

    return plant


def shards_folder(place: Place) -> None:
    (place.folder / "shards").symlink_to(place.victims)


def guessed(act: Act, *names: str, folder: str = "", to: str = "precious.txt") -> Act:
    """Links under temporary names, which hold the number of this very process."""

    def guess(place: Place) -> None:
        for name in names:
            ending = "old" if name.endswith("!") else "tmp"
            path = place.folder / folder / by_pid(name.removesuffix("!"), ending=ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(place.victims / to)
        act(place)

    return guess


def unfinished(place: Place) -> None:
    (place.run / "result.json").unlink()


def study(place: Place) -> None:
    folder = place.copy("study/runs", "runs") / "study-small-000000"
    (folder / "parts" / "two.json").unlink()


def damaged_shards(place: Place) -> None:
    (place.copy("shards", "shards") / "00001.tokens").write_bytes(b"")


def scripts(place: Place) -> None:
    """Code with a known failure, and links where its scripts will be written."""
    place.write("leaky.py", LEAKY_CODE)
    (place.folder / "scripts").mkdir()
    for name in ("causality", "prefix", "cache", "window", "batch"):
        (place.folder / "scripts" / f"Leaky_{name}.py").symlink_to(place.victim)


LEAKY_CODE = """import torch
class Leaky(torch.nn.Module):
    def forward(self, x):
        return x + x.flip(1).cumsum(1)
"""


def record_folder(name: str) -> Plant:
    def plant(place: Place) -> None:
        to = place.victims if name == "theory" else place.victim
        replace(place.folder / "docs" / name, "link", to)

    return plant


def naive_truncate(place: Place) -> None:
    with (place.run / "lock").open("w"):
        pass


def naive_delete(place: Place) -> None:
    for path in (place.run / "checkpoints").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def naive_append(place: Place) -> None:
    with (place.run / "metrics.jsonl").open("a") as file:
        file.write("{}\n")


def naive_temporary(place: Place) -> None:
    temporary = place.run / by_pid("config.json")
    temporary.symlink_to(place.victim)
    temporary.write_text("{}")
    temporary.replace(place.run / "config.json")


def naive_read(place: Place) -> None:
    print((place.run / "config.json").read_text())


RUN_FOLDER = "runs/20200101-000000-tiny-abcdef"
DOCS = command("claims", "copy", "--docs", "docs")
FAMILY = Family(
    name="links",
    about="links where we read and write",
    trials=[
        *(
            Trial(name=f"{name} of a run, resumed", plant=in_run(name), act=RESUME, codes=EITHER)
            for name in WRITTEN
        ),
        *(
            Trial(
                name=f"{name} of a run to a file that is not there",
                plant=in_run(name, to="new"),
                act=RESUME,
                codes=EITHER,
            )
            for name in ("lock", "metrics.jsonl", "config.json", "speed.jsonl")
        ),
        *(
            Trial(
                name=f"{name} of a run, hard link",
                plant=in_run(name, "hard link"),
                act=RESUME,
                codes=EITHER,
            )
            for name in ("lock", "config.json", "metrics.jsonl", "eval.jsonl", "speed.jsonl")
        ),
        *(
            Trial(name=f"{name} of a checkpoint", plant=in_run(f"checkpoint/{name}"), act=GENERATE)
            for name in CHECKPOINT
        ),
        Trial(name="checkpoints", plant=in_run("checkpoints", to=""), act=RESUME, codes=EITHER),
        Trial(
            name="a checkpoint's folder",
            plant=in_run("checkpoints/step_000002", to="step_000002"),
            act=RESUME,
            codes=EITHER,
        ),
        Trial(
            name="a checkpoint's folder to be written",
            plant=in_run("checkpoints/step_000004", to="step_000002"),
            act=RESUME,
            codes=EITHER,
        ),
        Trial(
            name="what a killed process left of a checkpoint",
            plant=in_run("checkpoints/.step_000003.1.tmp", to="inner"),
            act=RESUME,
            codes=EITHER,
        ),
        Trial(
            name="the folder of TensorBoard",
            plant=in_run("tensorboard", to="inner"),
            act=command(
                "train",
                "tiny",
                "--runs",
                "runs",
                "--resume",
                "{run}",
                "steps=4",
                "device=cpu",
                "tensorboard=true",
            ),
            codes=EITHER,
        ),
        *(
            Trial(name=f"{name} of a run, listed", plant=in_run(name), act=LIST, codes=EITHER)
            for name in ("config.json", "metrics.jsonl", "lock")
        ),
        *(
            Trial(
                name=f"{name} of a run, on the page", plant=in_run(name), act=DETAILS, codes=EITHER
            )
            for name in ("config.json", "samples.jsonl", "manifest.json")
        ),
        Trial(
            name="temporary names in a run",
            plant=unfinished,
            act=guessed(
                RESUME,
                "config.json",
                "manifest.json",
                "result.json",
                "metrics.jsonl",
                folder=RUN_FOLDER,
            ),
            codes=EITHER,
        ),
        Trial(
            name="temporary names of checkpoints",
            plant=unfinished,
            act=guessed(
                RESUME,
                "step_000004",
                "step_000002!",
                "step_000003",
                to="inner",
                folder=f"{RUN_FOLDER}/checkpoints",
            ),
            codes=EITHER,
        ),
        *(
            Trial(
                name=f"{name} of a study",
                plant=in_study(name),
                act=acts.use_workspace,
                codes=EITHER,
            )
            for name in STUDY
        ),
        *(
            Trial(
                name=f"the folder {name} of a study",
                plant=in_study(name, to="inner"),
                act=acts.use_workspace,
                codes=EITHER,
            )
            for name in STUDY_FOLDERS
        ),
        Trial(
            name="temporary names of a study",
            plant=study,
            act=guessed(acts.use_workspace, "two.json", folder="runs/study-small-000000/parts"),
            codes=EITHER,
        ),
        Trial(
            name="the log of a study's workers",
            plant=in_study("log.txt"),
            act=acts.write_log,
            codes=EITHER,
        ),
        Trial(
            name="the log of a study's workers, hard link",
            plant=in_study("log.txt", "hard link"),
            act=acts.write_log,
            codes=EITHER,
        ),
        Trial(
            name="the report of a study, on the page",
            plant=in_study("report.html"),
            act=acts.page("/report/study-small-000000"),
            codes=EITHER,
        ),
        Trial(
            name="the summary of a study, on the page",
            plant=in_study("report.md"),
            act=acts.page("/api/reports"),
            codes=EITHER,
        ),
        *(
            Trial(
                name=f"{name} of shards", plant=in_shards(name), act=acts.open_shards, codes=EITHER
            )
            for name in ("index.json", "00000.tokens")
        ),
        Trial(name="the folder of shards", plant=shards_folder, act=acts.open_shards, codes=EITHER),
        Trial(
            name="temporary names of shards",
            plant=damaged_shards,
            act=guessed(acts.open_shards, "00001.tokens", "index.json", folder="shards"),
            codes=EITHER,
        ),
        Trial(
            name="the scripts of an audit",
            plant=scripts,
            act=command("audit", "leaky.py:Leaky", "--repro", "scripts", "--timeout", "55"),
            codes=(0, 1, 2),
        ),
        *(
            Trial(name=f"{name} of the theory", plant=record_folder(name), act=DOCS, codes=(0, 2))
            for name in ("theory.md", "theory/outcomes.json", "theory")
        ),
        Trial(name="open for writing", plant=in_run("lock"), act=naive_truncate, caught="changed"),
        Trial(
            name="deleting in a folder",
            plant=in_run("checkpoints", to=""),
            act=naive_delete,
            caught="changed",
        ),
        Trial(
            name="appending to what is not there",
            plant=in_run("metrics.jsonl", to="new"),
            act=naive_append,
            caught="changed",
        ),
        Trial(
            name="appending to a hard link",
            plant=in_run("metrics.jsonl", "hard link"),
            act=naive_append,
            caught="changed",
        ),
        Trial(
            name="writing under a name that can be guessed",
            plant=unfinished,
            act=naive_temporary,
            caught="changed",
        ),
        Trial(name="reading", plant=in_run("config.json"), act=naive_read, caught="leaked"),
    ],
)
