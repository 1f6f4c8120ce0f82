"""The folder of a prepared text: what is in it, and when it is whole.

    plan.json                      what is prepared and how; written first
    tokenizer.json
    train-00007-00000.tokens       of part 7, piece 0 (compressed files have several): its tokens,
    train-00007-00000.ends         1, 2 or 4 bytes each, and where each document ends, 4 bytes each
    validation-00007-00000.…       the same of the documents kept for validation
    part-00007-00000.json          their counts and hashes; written after them
    index.json                     all of these together; written last, then those are removed

All numbers are little-endian and nothing else is in their files. A part whose hashes are right is
done; a folder with an index is whole. The index trusts no name and no count that is not its own.

Cost: opening asks for the size and time of every file. They are hashed once on each machine, a
second a gigabyte, and again when a size or a time has changed; who has just written them has them
hashed already.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import files, json_files
from attnlab.data.prepared.documents import FAULTS
from attnlab.data.tokens import Tokenizer, tokenizer_from_json

SCHEMA = 1
SPLITS = ("train", "validation")
PLAN, INDEX, TOKENIZER, LOCK = "plan.json", "index.json", "tokenizer.json", ".lock"
OURS = re.compile(
    r"(?:plan|index|tokenizer|part-\d{5,}-\d{5,})\.json|\.lock|\..*\.\d+\.tmp"
    r"|(?:train|validation)-\d{5,}-\d{5,}\.(?:tokens|ends)"
)
KEY = re.compile(r"\d{5,}-\d{5,}")
_SPLIT = {"tokens": int, "documents": int, "sha256": str, "ends": str}
_FAULTS = {f"{why}?": int for why in FAULTS}
RECORD = {"part": str, "last": bool, "bytes": int, "faults": _FAULTS}
RECORD |= dict.fromkeys(SPLITS, _SPLIT)
_INDEX = {"schema": int, "tokenizer": str, "width": int, "parts": [RECORD]}
Record = dict[str, Any]


def key_of(part: int, piece: int) -> str:
    return f"{part:05}-{piece:05}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One preparation at a time; a process that ends, however it ends, leaves no lock."""
    import fcntl

    with files.open_lock(folder / LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{folder} is being prepared by another process; wait for it"
            ) from None
        yield


def claim(folder: Path) -> None:
    """Make the folder; a ValueError if it holds anything that is not of a preparation."""
    try:
        files.make_folder(folder)
        names = sorted(one.name for one in folder.iterdir())
    except FileExistsError:
        raise ValueError(f"{folder} is a file; name a new folder") from None
    strange = [name for name in names if not OURS.fullmatch(name)]
    if PLAN not in names:  # which is written before all but what a killed process leaves of it
        strange += [name for name in names if name != LOCK and not name.endswith(".tmp")]
    if strange:
        said = f"{folder} holds {strange[0]}, which is of no preparation; name a new folder"
        raise ValueError(said)


def sweep(folder: Path) -> None:
    """What a killed process was writing, or had not removed yet."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
    if os.path.lexists(folder / INDEX):
        for path in folder.glob("part-*.json"):
            path.unlink(missing_ok=True)


def write_plan(folder: Path, plan: dict[str, Any]) -> str:
    """The fingerprint of the plan; a ValueError if the folder has another one."""
    path, wanted = folder / PLAN, {"schema": SCHEMA, **plan}
    if os.path.lexists(path):
        before = _sealed(path)
        if before != wanted:
            raise ValueError(_difference(folder, before, wanted))
    else:
        files.write_whole(path, json_files.sealed_json(wanted))
    return hashlib.sha256(json_files.as_json(wanted)).hexdigest()


def _difference(folder: Path, before: dict[str, Any], wanted: dict[str, Any]) -> str:
    advice = f"give the same again, or name a new folder; or remove {folder}"
    if before.get("schema") != SCHEMA:
        said = before.get("schema")
        return (
            f"{folder} was begun by another version of attnlab (schema {said}, this has {SCHEMA}); "
            "go on with that one, or name a new folder"
        )
    if before.get("settings") != wanted["settings"]:
        then, now = before.get("settings"), wanted["settings"]
        then = then if isinstance(then, dict) else {}
        keys = [key for key in now if then.get(key) != now[key]]
        changed = ", ".join(f"{key} was {then.get(key)}, now {now[key]}" for key in keys)
        return f"{folder} was begun with other settings ({changed}); {advice}"
    return f"{folder} was begun from another source, or its files have changed; {advice}"


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    files.write_whole(folder / TOKENIZER, json_files.sealed_json(tokenizer.to_json()))


def read_tokenizer(folder: Path) -> Tokenizer:
    return tokenizer_from_json(_sealed(folder / TOKENIZER))


def write_part(
    folder: Path, key: str, found: dict[str, tuple[np.ndarray, np.ndarray]], **facts: Any
) -> Record:
    """Tokens and ends of each split, and then the record that says they are whole."""
    record: Record = {"part": key, **facts}
    for split, (tokens, ends) in found.items():
        row: dict[str, Any] = {"tokens": len(tokens), "documents": len(ends)}
        for name, array, hashed in ((".tokens", tokens, "sha256"), (".ends", ends, "ends")):
            content = array.astype(array.dtype.newbyteorder("<")).tobytes()
            row[hashed] = hashlib.sha256(content).hexdigest()
            if content:
                files.write_whole(folder / f"{split}-{key}{name}", content)
        record[split] = row
    files.write_whole(folder / f"part-{key}.json", json_files.sealed_json(record))
    return record


def done_parts(folder: Path, plan: str, width: int, workers: int) -> dict[str, Record]:
    """Records of the parts that are whole, every byte of them hashed, by their keys."""
    records = []
    for path in sorted(folder.glob("part-*.json")):
        with suppress(OSError, ValueError):
            record = json_files.in_shape(_sealed(path), {**RECORD, "plan": str}, path)
            if record["plan"] == plan and path.name == f"part-{record['part']}.json":
                records.append(record)
    return {
        record["part"]: record
        for record, fault in zip(records, _faults(folder, records, width, workers), strict=True)
        if not fault
    }


def _faults(
    folder: Path,
    records: Sequence[Record],
    width: int,
    workers: int,
    tick: Callable[[str], None] | None = None,
) -> list[str]:
    """What is wrong with each of these parts, by their hashes; empty where nothing is."""
    with ThreadPoolExecutor(max(workers, 1)) as pool:  # hashing gives way to other threads
        found = list[str]()
        for number, fault in enumerate(pool.map(lambda r: _fault(folder, r, width), records)):
            found.append(fault)
            if tick is not None:
                tick(f"checking: {number + 1:,} of {len(records):,} parts")
        return found


def _fault(folder: Path, record: Record, width: int) -> str:
    for path, size, digest in _files_of(folder, record, width):
        try:
            right = path.stat(follow_symlinks=False).st_size == size
            if not right or files.sha256(path) != digest:
                return f"{path} is damaged"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    return ""


def _files_of(folder: Path, record: Record, width: int) -> Iterator[tuple[Path, int, str]]:
    """Path, size and hash of each file of a part."""
    for split in SPLITS:
        row = record[split]
        stem = f"{split}-{record['part']}"
        if row["tokens"]:
            yield folder / f"{stem}.tokens", row["tokens"] * width, row["sha256"]
        if row["documents"]:
            yield folder / f"{stem}.ends", row["documents"] * 4, row["ends"]


def write_index(folder: Path, tokenizer: Tokenizer, records: Sequence[Record]) -> None:
    rows = [{key: record[key] for key in RECORD} for record in records]
    index = {
        "schema": SCHEMA,
        "tokenizer": files.sha256(folder / TOKENIZER),
        "width": width_of(tokenizer),
        "parts": rows,
    }
    files.write_whole(folder / INDEX, json_files.sealed_json(index, indent=None))
    for record in records:
        (folder / f"part-{record['part']}.json").unlink(missing_ok=True)


def width_of(tokenizer: Tokenizer) -> int:
    """Bytes of a token."""
    return next(width for width in (1, 2, 4) if tokenizer.size <= 2 ** (8 * width))


@dataclass(frozen=True)
class Opened:
    """A prepared text whose files are there, and as they were when they were hashed."""

    folder: Path
    tokenizer: Tokenizer
    width: int
    records: list[Record]
    fingerprint: str

    def total(self, split: str, what: str) -> int:
        return sum(record[split][what] for record in self.records)

    @property
    def faults(self) -> dict[str, int]:
        """Documents that were left out, by why."""
        counts = {why: sum(one["faults"].get(why, 0) for one in self.records) for why in FAULTS}
        return {why: count for why, count in counts.items() if count}


def is_one(folder: Path) -> bool:
    return os.path.lexists(folder / PLAN) and not (folder / PLAN).is_dir()


def open_folder(
    folder: Path,
    *,
    whole: bool = False,
    tick: Callable[[str], None] = lambda text: None,
) -> Opened:
    """A prepared text to read; `whole` hashes it though it was hashed before."""
    opened = read_index(folder)
    if whole or not _is_trusted(opened):
        workers = os.cpu_count() or 1
        for fault in filter(None, _faults(folder, opened.records, opened.width, workers, tick)):
            raise ValueError(f"{fault}; the command that prepared it makes it again, with --check")
        trust(opened)
    return opened


def read_index(folder: Path) -> Opened:
    """What the index says; no file that it names is opened."""
    path = folder / INDEX
    if not os.path.lexists(path):
        if is_one(folder):
            raise ValueError(
                f"{folder} is not prepared to the end; the command that began it resumes it"
            )
        raise ValueError(f"{folder} is no prepared text; make one: attnlab prepare SOURCE {folder}")
    index = _sealed(path, indent=None)
    if index.get("schema") != SCHEMA:
        said = index.get("schema")
        raise ValueError(
            f"{folder} was prepared by another version of attnlab (schema {said}, this has "
            f"{SCHEMA}); prepare it anew"
        )
    json_files.in_shape(index, _INDEX, path)
    if index["width"] not in (1, 2, 4):
        raise ValueError(f"{path}: width is {index['width']}; {json_files.ODD}")
    keys = [record["part"] for record in index["parts"]]
    if not all(map(KEY.fullmatch, keys)) or any(a >= b for a, b in itertools.pairwise(keys)):
        raise ValueError(f"{path} does not name its parts by their numbers; {json_files.ODD}")
    try:
        same = files.sha256(folder / TOKENIZER) == index["tokenizer"]
    except OSError as error:
        raise ValueError(f"{folder / TOKENIZER} cannot be read: {error.strerror}") from None
    tokenizer = read_tokenizer(folder) if same else None
    if tokenizer is None or width_of(tokenizer) != index["width"]:
        raise ValueError(f"{folder / TOKENIZER} is not the tokenizer of its index")
    digest = hashlib.sha256(json_files.as_json(index, None)).hexdigest()
    return Opened(folder, tokenizer, index["width"], index["parts"], digest)


def trust(opened: Opened) -> None:
    """Remember that these files, as they are now, have the hashes of their index.

    In a folder of this person's own: what a stranger's folder says of itself proves nothing.
    """
    try:
        files.make_folder(_mark(opened).parent)
        files.write_whole(_mark(opened), _states(opened).encode())
    except OSError:  # then they are hashed at every start
        return


def _is_trusted(opened: Opened) -> bool:
    states = _states(opened)  # refuses what is not there
    try:
        return files.read(_mark(opened), 1024) == states.encode()
    except OSError:
        return False


def _mark(opened: Opened) -> Path:
    words = f"{opened.folder.resolve()}\0{opened.fingerprint}"
    return files.cache_folder() / "prepared" / hashlib.sha256(words.encode()).hexdigest()[:32]


def _states(opened: Opened) -> str:
    """Sizes and times of all files, as one hash."""
    digest = hashlib.sha256()
    for record in opened.records:
        for path, size, _ in _files_of(opened.folder, record, opened.width):
            try:
                state = path.stat(follow_symlinks=False)
            except OSError as error:
                raise ValueError(f"{path} cannot be read: {error.strerror}") from None
            if state.st_size != size:
                raise ValueError(
                    f"{path} has {state.st_size:,} bytes and not {size:,}; the command that "
                    "prepared it makes it again, with --check"
                )
            digest.update(f"{path.name} {size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _sealed(path: Path, indent: int | None = 2) -> dict[str, Any]:
    try:
        return json_files.unseal(files.read(path), path, indent)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def remade(folder: Path, plan: str, workers: int, tick: Callable[[str], None]) -> bool:
    """Take a whole folder back to the parts of it that are right; whether any was not."""
    opened = read_index(folder)
    faults = _faults(folder, opened.records, opened.width, workers, tick)
    if not any(faults):
        trust(opened)
        return False
    for record, fault in zip(opened.records, faults, strict=True):
        path = folder / f"part-{record['part']}.json"
        if not fault:
            files.write_whole(path, json_files.sealed_json({**record, "plan": plan}))
    (folder / INDEX).unlink()
    return True
