"""A preparation from its source to a whole folder: the plan, the tokenizer, the parts, the index.

    prepare(settings, source, folder)

Parts are worked by processes, one a core; which of them works which, and when, changes no byte.
What a killed preparation has written stays and is used: the same command goes on.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from attnlab import files, json_files
from attnlab.cluster import Cluster
from attnlab.data.bpe import Bpe
from attnlab.data.huggingface import HuggingFace, HuggingFaceTokenizer
from attnlab.data.prepared import documents, folder, sources, work
from attnlab.data.prepared.documents import Piece
from attnlab.data.prepared.preparation import Preparation, size_of
from attnlab.data.prepared.sources import Part, Source
from attnlab.data.prepared.work import Done, Job
from attnlab.data.tokens import Characters, Tokenizer, tokenizer_from_json
from attnlab.stop import sparing_children

T = TypeVar("T")
Tick = Callable[[str], None]  # hears what is being done
Hire = Callable[[int], AbstractContextManager[tuple[Any, int]]]  # for so many parts
RESUMES = "the same command goes on from there"


@dataclass
class Work:
    """What this process and its workers have done, for the report."""

    bytes: int = 0
    seconds: float = 0.0
    processor: float = 0.0  # seconds, summed over the workers
    parts: int = 0
    peaks: dict[int, int] = field(default_factory=dict)  # bytes, by process

    def count(self, done: Done) -> None:
        self.bytes += done.record["bytes"]
        self.processor += done.seconds
        self.parts += 1
        self.peaks[done.pid] = max(done.peak, self.peaks.get(done.pid, 0))


def prepare(
    settings: Preparation,
    source: str,
    place: Path,
    *,
    tick: Tick = lambda text: None,
    check: bool = False,
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """Make the folder whole; what it holds, and what was done for it. `check`: hash it all.

    Parts are worked by processes of this machine, or on a cluster.
    """
    begun = time.perf_counter()
    found = sources.find(source, settings.kind)
    _refuse_left_out(found, settings)
    _refuse_inside(found, place)
    folder.claim(place)
    with folder.locked(place):
        plan = folder.write_plan(place, _plan(settings, found))
        folder.sweep(place)
        spent = Work()
        if (place / folder.INDEX).exists() and not (
            check and folder.remade(place, plan, _workers(settings), tick)
        ):
            return _report(folder.open_folder(place, tick=tick), found, settings, spent)
        job = Job(place, settings, found.files, plan, settings.part_of(found.bytes))
        parts = sources.parts_of(found.files, job.size, settings.field)
        hire = partial(_workers_for, cluster, job)
        tokenizer = _tokenizer(job, found, parts, tick, hire)
        tick("looking for what is done")
        token = folder.width_of(tokenizer)
        records = folder.done_parts(place, plan, token, _workers(settings))
        todo = [part for part in parts if not _is_done(part, records)]
        encoding = time.perf_counter()
        with hire(len(todo)) as (submit, width):
            calls = (
                (part, piece)
                for part, piece in _pieces(job, todo)
                if folder.key_of(part.number, piece.number if piece else 0) not in records
            )
            for done in _results(submit, work.encode, calls, width):
                spent.count(done)
                records[done.record["part"]] = done.record
                tick(_progress(spent, time.perf_counter() - encoding, len(todo)))
        ordered = [records[key] for key in sorted(records)]
        if not any(record["train"]["tokens"] for record in ordered):
            raise ValueError(f"{source} holds no document to train on; there is nothing to prepare")
        folder.write_index(place, tokenizer, ordered)
        opened = folder.read_index(place)
        folder.trust(opened)
        spent.seconds = time.perf_counter() - begun
        return _report(opened, found, settings, spent)


def _plan(settings: Preparation, found: Source) -> dict[str, Any]:
    names = [[file.name, file.kind, file.size, file.changed] for file in found.files]
    plan = {"settings": settings.decides, "source": found.name, "files": names}
    if settings.tokenizer_from:
        plan["tokenizer"] = files.sha256(_tokenizer_file(settings))
    return plan


def _refuse_left_out(found: Source, settings: Preparation) -> None:
    if found.left_out and settings.bad == "refuse":
        named = ", ".join(found.left_out[: sources.NAMED])
        more = len(found.left_out) - sources.NAMED
        raise ValueError(
            f"{found.name} holds files of no known kind: {named}"
            + (f" and {more} more" if more > 0 else "")
            + "; move them, say what they are (kind=text), or leave them out: bad=skip"
        )


def _refuse_inside(found: Source, place: Path) -> None:
    inside = place.resolve()
    if inside == found.path:
        raise ValueError(f"{place} is the source itself; name a new folder")
    if found.path in inside.parents:
        raise ValueError(f"{place} lies in the source; name a folder outside of it")
    if inside in found.path.parents:
        raise ValueError(f"the source lies in {place}; name another folder to write into")


def _tokenizer(job: Job, found: Source, parts: Sequence[Part], tick: Tick, hire: Hire) -> Tokenizer:
    """The one that the folder has, or a new one, kept in it before anything is encoded."""
    if os.path.lexists(job.place / folder.TOKENIZER):
        return folder.read_tokenizer(job.place)
    made = _new_tokenizer(job, parts, tick, hire)
    folder.write_tokenizer(job.place, made)
    return made


def _new_tokenizer(job: Job, parts: Sequence[Part], tick: Tick, hire: Hire) -> Tokenizer:
    settings = job.settings
    if settings.tokenizer_from:
        return read_tokenizer(_tokenizer_file(settings))
    if isinstance(settings.tokenizer, HuggingFace):
        raise ValueError("tokenizer=huggingface is read, not learned: tokenizer_from=FOLDER")
    if isinstance(settings.tokenizer, Characters):
        seen = set(settings.separator)
        with hire(len(parts)) as (submit, width):
            for number, characters in enumerate(
                _results(submit, work.alphabet, _pieces(job, parts), width)
            ):
                seen.update(characters)
                tick(f"looking for characters: {number + 1:,} of {len(parts):,} parts or more")
        return settings.tokenizer.train(sorted(seen), special=False)
    if not isinstance(settings.tokenizer, Bpe):  # bytes: nothing is learned
        return settings.tokenizer.train([], special=False)
    tick(f"learning pairs from {settings.sample}")
    sample = documents.sample_of(
        parts,
        job.files,
        size=size_of(settings.sample),
        field=settings.field,
        cut=settings.documents,
        keep=lambda content: not settings.kept_apart(content),
    )
    return settings.tokenizer.train(sample, special=False)


def _tokenizer_file(settings: Preparation) -> Path:
    path = Path(settings.tokenizer_from).expanduser()
    path = path / folder.TOKENIZER if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"tokenizer_from: there is no {path}; name a run, a folder or a file")
    return path.resolve()


def read_tokenizer(path: Path) -> Tokenizer:
    """Of this package, or a tokenizer.json as others write it."""
    try:
        plain = json_files.parse_json(files.read_named(path), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{path} is no tokenizer; it holds no JSON object")
    plain.pop(json_files.SEAL, None)
    if isinstance(plain.get("name"), str):
        return tokenizer_from_json(plain)
    return HuggingFaceTokenizer(plain, _size_of(plain, path))


def _size_of(plain: dict[str, Any], path: Path) -> int:
    """Tokens of a tokenizer.json; the model beside it may have more of them."""
    try:
        beside = json_files.read_json(path.with_name("config.json"), {"vocab_size": int})
        return max(1, beside["vocab_size"])
    except (OSError, ValueError):
        pass
    from attnlab.data.bpe import library

    inner = library().Tokenizer.from_str(json_files.as_json(plain, None).decode())
    return max(inner.get_vocab().values(), default=0) + 1


def _workers(settings: Preparation) -> int:
    if settings.workers is not None:
        return settings.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_done(part: Part, records: dict[str, folder.Record]) -> bool:
    """All pieces of it are there, from the first to the last."""
    piece = 0
    while (record := records.get(folder.key_of(part.number, piece))) is not None:
        if record["last"]:
            return True
        piece += 1
    return False


def _pieces(job: Job, parts: Sequence[Part]) -> Iterator[tuple[Part, Piece | None]]:
    """Each part, and each piece of one that is streamed: this process unpacks it."""
    for part in parts:
        if not part.streamed:
            yield part, None
            continue
        file = job.files[part.spans[0].file]
        file.refuse_change()
        for piece in documents.pieces_of(file, job.size, job.settings.documents):
            yield part, piece
        file.refuse_change()


@contextmanager
def _workers_for(cluster: Cluster | None, job: Job, parts: int) -> Iterator[tuple[Any, int]]:
    """What takes a call and gives its future, and how many work: processes, or a cluster.

    For one part it is this process. Another ends when its end of a pipe is closed, which a killed
    parent does as well.
    """
    count = _workers(job.settings)
    if cluster is not None and parts:
        from attnlab.data.prepared.on_ray import workers_on

        with workers_on(cluster, job.settings.workers, job) as found:
            yield found
        return
    if count == 1 or (parts <= 1 and not any(file.packed for file in job.files)):
        work.begin(job)
        yield _call_here, 1
        return
    context = get_context("spawn")
    ears, mouth = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, work.begin, (job, ears))

    def submit(call: Callable[..., T], part: Part, piece: Piece | None) -> Future[T]:
        with sparing_children():
            return pool.submit(call, part, piece)

    try:
        yield submit, count
    except BrokenProcessPool:
        raise ValueError(
            f"a worker was killed, as happens where memory runs out; {RESUMES}, and with fewer of "
            "them: workers=1"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        mouth.close()
        ears.close()


def _call_here(call: Callable[..., T], part: Part, piece: Piece | None) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(call(part, piece))
    return future


def _results(
    submit: Any,
    call: Callable[..., T],
    calls: Iterator[tuple[Part, Piece | None]],
    width: int,
) -> Iterator[T]:
    """What the calls return, as they end; one more than there are workers waits for its turn."""
    waiting = set[Future[T]]()
    for part, piece in calls:
        waiting.add(submit(call, part, piece))
        if len(waiting) > width:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from (one.result() for one in done)


def _progress(spent: Work, seconds: float, todo: int) -> str:
    rate = spent.bytes / max(seconds, 1e-9)
    left = (todo - spent.parts) * seconds / max(spent.parts, 1)
    said = f"tokenizing: {spent.bytes / 1e6:,.0f} MB, {rate / 1e6:,.1f} MB/s"
    if left < 0:  # a compressed file has more pieces than anybody knew
        return said
    return f"{said}, {spent.parts:,} of {todo:,} parts, {left:,.0f} s left"


def _report(
    opened: folder.Opened, found: Source, settings: Preparation, spent: Work
) -> dict[str, Any]:
    own = work.peak_bytes()
    others = sum(peak for pid, peak in spent.peaks.items() if pid != os.getpid())
    return {
        "folder": str(opened.folder),
        "tokenizer": opened.tokenizer.to_json()["name"],
        "vocabulary": opened.tokenizer.size,
        "bytes_a_token": opened.width,
        "train_documents": opened.total("train", "documents"),
        "train_tokens": opened.total("train", "tokens"),
        "validation_documents": opened.total("validation", "documents"),
        "validation_tokens": opened.total("validation", "tokens"),
        "text_bytes": sum(record["bytes"] for record in opened.records),
        "left_out": opened.faults,
        "left_out_files": len(found.left_out),
        "fingerprint": opened.fingerprint,
        "encoded_bytes": spent.bytes,
        "seconds": spent.seconds,
        "processor_seconds": spent.processor,
        "workers": len(spent.peaks),
        "peak_bytes": own + others,
    }
