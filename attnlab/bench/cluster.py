"""`attnlab bench cluster`: the same work on Ray clusters of this machine, with 1, 2, 4 workers.

    trainings   small language models, each on one thread
    sweep       audits of models of transformers
    prepare     made-up text to tokens

Each is done by processes of this machine first, and every cluster must come to the same: losses of
every step, rows but for their times, bytes. Seconds are from the first call to the last answer,
with the start of worker processes and their imports; the start of the cluster is told apart.
"""

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import config, presets
from attnlab.audit.on_ray import crew_on
from attnlab.audit.sandbox import Limits, Request
from attnlab.audit.sweep import Job, sweep
from attnlab.bench.made_text import made_text
from attnlab.bench.prepare import write_text
from attnlab.cluster import Cluster, at
from attnlab.config import refusal, setting, settings
from attnlab.data.corpora import TextFiles
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation, size_of
from attnlab.experiments.local import LocalPool
from attnlab.experiments.on_ray import RayPool
from attnlab.experiments.pool import Pool, Task
from attnlab.stop import stoppable
from attnlab.training.runs import Run

PARTS = ("trainings", "sweep", "prepare")
TEXT = 60_000  # bytes that are trained on
Tick = Callable[[str], None]


@settings
class ClusterBench:
    parts: tuple[str, ...] = setting(PARTS, choices=PARTS, about="what is measured")
    workers: tuple[int, ...] = setting((1, 2, 4), low=1, about="workers of the clusters")
    trainings: int = setting(8, low=1, about="models to train")
    steps: int = setting(100, low=1, about="steps of each")
    models: tuple[str, ...] = setting(
        ("gpt2", "llama", "mistral", "gpt_neox", "opt", "phi"),
        about="models of transformers to audit",
    )
    bytes: str = setting("20MB", about="text that is prepared")

    def check(self) -> None:
        try:
            size_of(self.bytes)
        except ValueError as error:
            raise refusal(self, "bytes", str(error)) from None

    def run(self, tick: Tick = lambda text: None) -> dict[str, Any]:
        at("ray", None)
        known = {"cores": os.cpu_count(), "load": [round(one, 1) for one in os.getloadavg()]}
        report: dict[str, Any] = {
            "settings": dataclasses.asdict(self),
            **known,
            "starts": {},
            "parts": {},
        }
        works = {"trainings": self._train, "sweep": self._sweep, "prepare": self._prepare}
        with (
            tempfile.TemporaryDirectory(prefix="attnlab-cluster-") as made,
            stoppable(lambda: "some of its parts", report.copy),
        ):
            place = Path(made)
            write_text(place / "text.jsonl", size_of(self.bytes), 0)
            few = b"".join(made_text(TEXT, 0)).decode(errors="replace")
            (place / "few.txt").write_text(few)
            expected = {}
            for part in self.parts:
                tick(f"{part}: processes of this machine")
                begun = time.perf_counter()
                expected[part] = works[part](place / f"{part}-local", None)
                report["parts"][part] = {"local": time.perf_counter() - begun, "on_ray": {}}
            for count in self.workers:
                tick(f"starting a cluster of {count}")
                begun = time.perf_counter()
                with Cluster("local").connected(processors=count):
                    report["starts"][str(count)] = time.perf_counter() - begun
                    for part in self.parts:
                        tick(f"{part}: a cluster of {count}")
                        begun = time.perf_counter()
                        found = works[part](place / f"{part}-{count}", Cluster("local"))
                        report["parts"][part]["on_ray"][str(count)] = {
                            "seconds": time.perf_counter() - begun,
                            "same": found == expected[part],
                        }
        return report

    def _train(self, place: Path, cluster: Cluster | None) -> object:
        words = [f"steps={self.steps}", "evaluate_every=100", "sample_every=none"]
        corpus = TextFiles(path=str(place.parent / "few.txt"))
        recipe = dataclasses.replace(config.override(presets.tiny(), words), corpus=corpus)
        tasks = [
            Task(str(n), place / str(n), dataclasses.replace(recipe, seed=n))
            for n in range(self.trainings)
        ]
        place.mkdir()
        pool: Pool = LocalPool() if cluster is None else RayPool(cluster)
        endings = pool.train(tasks, place / "log.txt", lambda done, said: None)
        losses = [[row["loss"] for row in Run(one.folder).read("metrics")] for one in tasks]
        return endings, losses

    def _sweep(self, place: Path, cluster: Cluster | None) -> object:
        jobs = [Job(request=Request(target=f"hf:{name}")) for name in self.models]
        limits = Limits()
        crew = None if cluster is None else partial(crew_on, cluster, limits)
        rows = sweep(jobs, limits=limits, crew=crew).rows
        return [{key: row[key] for key in row if key != "seconds"} for row in rows]

    def _prepare(self, place: Path, cluster: Cluster | None) -> object:
        chosen = config.override(Preparation(), ["tokenizer.vocabulary=1024", "sample=1MB"])
        prepare(chosen, str(place.parent / "text.jsonl"), place, cluster=cluster)
        return {path.name: path.read_bytes() for path in place.iterdir()}

    def show(self, report: dict[str, Any], screen: Console) -> None:
        for line in lines(report):
            screen.print(line, highlight=False, soft_wrap=True)

    def passed(self, report: dict[str, Any]) -> bool:
        each = [one for part in report["parts"].values() for one in part["on_ray"].values()]
        return all(one["same"] for one in each)


def lines(report: dict[str, Any]) -> list[str]:
    load = ", ".join(map(str, report["load"]))
    said = [f"{report['cores']} cores; load of the last 1, 5, 15 minutes at the start: {load}"]
    started = ", ".join(f"{one:.1f} s for {n}" for n, one in report["starts"].items())
    said.append(f"to start a cluster: {started}")
    for name, part in report["parts"].items():
        said.append(f"{name}: {part['local']:.1f} s by processes of this machine")
        first = next(iter(part["on_ray"].values()), {"seconds": 0.0})["seconds"]
        for count, one in part["on_ray"].items():
            same = "the same results" if one["same"] else "OTHER RESULTS"
            said.append(
                f"  {count} workers: {one['seconds']:.1f} s, "
                f"{first / max(one['seconds'], 1e-9):.2f} times as fast as the first; {same}"
            )
    return said
