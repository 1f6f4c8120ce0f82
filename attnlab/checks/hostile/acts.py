"""What a person does with hostile files, other than by a verb of the command line."""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import files
from attnlab.checks import fuzz
from attnlab.checks.hostile.trial import Act, Place, fill
from attnlab.data import shards
from attnlab.data.biographies import Biographies
from attnlab.data.tokens import Bytes
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job, open_workspace
from attnlab.kernels import attention
from attnlab.page.server import Server, ServerSettings
from attnlab.theory import record
from attnlab.training import runs

TOKENS = 1000
WORKSPACE = "runs/study-small-000000"


def make_template(folder: Path) -> None:
    """Good files to be damaged: a run with a checkpoint, shards, the folder of a study."""
    fuzz.train_small(runs.Run(folder / "run"))
    shards.SHARD = 400
    shards.shards_in(folder / "shards", tokens(), np.dtype(np.uint8))
    os.environ["ATTNLAB_CACHE"] = str(folder / "cache")
    use_kernel(Place(folder, folder))
    place = Place(folder / "study", folder)
    place.folder.mkdir()
    use_workspace(place)


def tokens() -> Iterator[np.ndarray]:
    return iter(np.array_split(np.arange(TOKENS) % 251, 7))


def open_shards(place: Place) -> None:
    """As a training does it: what is damaged is made again, and the tokens are right."""
    shards.SHARD = 400
    stream = shards.shards_in(
        place.folder / "shards", tokens(), np.dtype(np.uint8), note=lambda line: say(line)
    )
    found = stream.take(np.array([0]), stream.count)[0]
    if stream.count != TOKENS or (found != np.arange(TOKENS) % 251).any():
        raise AssertionError("the tokens are wrong")


def use_kernel(place: Place) -> None:
    """Sliding-window attention, by the compiled path where it can be had."""
    q = torch.randn(1, 2, 100, 16, generator=torch.Generator().manual_seed(0))
    got = attention(q, q, q, window=5)
    wanted = attention(q, q, q, window=5, path="reference")
    if not torch.allclose(got, wanted, atol=1e-5):
        raise AssertionError("the attention is wrong")


def cache_tokens(place: Place) -> None:
    """A text that is large enough for the cache."""
    shards.SMALL = 0
    corpus = Biographies(people=8, wordings=1).load()
    shards.stream_of(corpus, Bytes().train([], False), "train")


def use_workspace(place: Place) -> None:
    """An experiment of two jobs, one of which was done before."""
    workspace = open_workspace(
        place.folder / "runs", "small", "000000", Notes(), again=False, kind="study"
    )
    with runs.Run(workspace.folder).locked():
        files.write_whole(workspace.folder / "settings.json", b"{}\n")
        found = workspace.run_jobs([Job("one", lambda: {"a": 1}), Job("two", lambda: {"b": 2})])
        workspace.seconds()
        write_report(workspace.folder)
    if found != {"one": {"a": 1}, "two": {"b": 2}}:
        raise AssertionError(f"a job came to {found}")


def write_report(folder: Path) -> None:
    from attnlab.reports.report import Plot, Section, Series
    from attnlab.reports.report import Report as Page
    from attnlab.reports.write import write

    curve = Plot(title="A curve", x="x", y="y", series=[Series(name="s", x=[1, 2], y=[1, 2])])
    sections = [Section(heading="What was found", blocks=[curve])]
    write(Page(title="t", question="q", answer="a", sections=sections), {}, folder)


def write_log(place: Place) -> None:
    """As a pool does it, whose workers write there."""
    with files.open_log(place.folder / WORKSPACE / "log.txt") as file:
        file.write("a worker began\n")


class Notes(Progress):
    def note(self, line: str) -> None:
        say(line)


def say(line: str) -> None:
    print(line, file=sys.stderr)


def damaged_part(place: Place, content: bytes) -> Path:
    """The folder of a study in which the result of a job holds something else."""
    folder = place.copy("study/runs", "runs")
    part = folder / "study-small-000000" / "parts" / "one.json"
    part.write_bytes(content)
    return part


def read_record(place: Place) -> None:
    record.read(place.folder / "docs")


def page(*paths: str, body: Any = None) -> Act:
    """Ask the page, and print what it answers; exit code 2 if every answer is a refusal."""

    def act(place: Place) -> None:
        settings = ServerSettings(root=place.runs, port=0, slowest=5.0, warm=False)
        with Server(settings).running() as server:
            asked = [ask(server, fill(path, place), body) for path in paths]
        show_answers(asked)

    return act


def show_answers(answers: Sequence[bytes]) -> None:
    os.write(1, b"\n".join(answers) + b"\n")
    statuses = [int(answer.split(maxsplit=2)[1]) for answer in answers]
    if any(status >= 500 for status in statuses):
        raise AssertionError(f"the page answered {statuses}")
    if all(status >= 400 for status in statuses):
        raise ValueError(f"the page answered {statuses}")


def ask(server: Server, path: str, body: Any = None) -> bytes:
    """The whole answer, head and body."""
    request = fuzz.request(server, "GET" if body is None else "POST", path, body)
    received = b""
    with socket.create_connection(("127.0.0.1", server.known.port), 30) as client:
        client.sendall(request)
        while piece := client.recv(1 << 18):
            received += piece
    if received.startswith(b"HTTP/1.1 303 "):  # as a browser would
        location = received.partition(b"\r\nlocation: ")[2].partition(b"\r\n")[0]
        return ask(server, location.decode())
    return received or b"HTTP/1.1 400 hung-up\r\n\r\n"
