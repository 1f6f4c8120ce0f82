"""Parts of a preparation on a Ray cluster: `attnlab prepare … --on ray`.

Every machine reads the source and writes into the folder, which they share. A part whose machine is
lost is worked again, to the same bytes.
"""

import socket
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from attnlab.cluster import STORE, Cluster, Lost, Session
from attnlab.data.prepared import work
from attnlab.data.prepared.documents import Piece
from attnlab.data.prepared.sources import File, Part
from attnlab.data.prepared.work import Done, Job

T = TypeVar("T")
PIECES = 4  # pieces of a compressed file that a new cluster has room for
READ = "the source must be on a filesystem that all machines of the cluster share"


@contextmanager
def workers_on(cluster: Cluster, count: int | None, job: Job) -> Iterator[tuple[Any, int]]:
    """What takes a call and gives its future, and how many calls are worked at a time."""
    packed = any(file.packed for file in job.files)
    store = STORE + (PIECES * job.size if packed else 0)  # pieces are sent
    with cluster.connected(processors=count, store=store) as session:
        session.require("CPU")
        session.refuse_other_versions()
        session.refuse_unshared(job.place, "the folder of tokens")
        _refuse_other_source(session, job)
        width = count or session.total("CPU")
        calls = session.calls(answered, surroundings={"TOKENIZERS_PARALLELISM": "false"})
        there = session.ray.put(replace(job, place=job.place.absolute()))

        def submit(call: Callable[..., T], part: Part, piece: Piece | None) -> Future[T]:
            return calls.future(_answer, there, call.__name__, part, piece)

        try:
            yield submit, width
        finally:
            calls.cancel()


def _refuse_other_source(session: Session, job: Job) -> None:
    for name, other in session.ask_all(first_other, list(job.files)).items():
        if other:
            raise ValueError(f"{name} cannot read {other} as it is here; {READ}")


def first_other(files: list[File]) -> str:
    """The first file that is not here, or is another one."""
    for file in files:
        try:
            file.refuse_change()
        except (ValueError, OSError):
            return str(file.path)
    return ""


def answered(job: Job, call: str, part: Part, piece: Piece | None) -> dict[str, Any]:
    """What the call returns, or the line of a person's error; in a process of Ray."""
    work.begin_once(job)
    try:
        found = getattr(work, call)(part, piece)
        if isinstance(found, Done):  # two machines may have processes of one number
            machine = zlib.crc32(socket.gethostname().encode())
            found = replace(found, pid=machine << 32 | found.pid)
        return {"answer": found}
    except (ValueError, OSError) as error:
        return {"error": str(error)}


def _answer(found: Any) -> Any:
    if isinstance(found, Lost):
        raise ValueError(f"a worker was lost: {found}; the same command goes on from there")
    if "error" in found:
        raise ValueError(found["error"])
    return found["answer"]
