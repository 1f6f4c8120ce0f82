"""Where text comes from: files, folders, the documentation of Python; split for validation.

A corpus yields its text in pieces and never needs all of it in memory: a first pass counts and
fingerprints, later passes stream.

Cost: a pass reads and decodes the files, about a second for 500 MB, in chunks of 8 MiB.
"""

import codecs
import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from attnlab.config import check_value, setting, settings

if TYPE_CHECKING:
    from attnlab.data.shards import Stream
    from attnlab.data.tokens import Tokenizer

CHUNK = 8 * 2**20  # bytes read at once
_PROSE = [".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".srt", ".org", ".adoc", ".log"]
_DATA = [".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini"]
_CODE = [
    ".py",
    ".c",
    ".h",
    ".cpp",
    ".cu",
    ".rs",
    ".go",
    ".java",
    ".js",
    ".ts",
    ".css",
    ".sh",
    ".sql",
]
SUFFIXES = frozenset([*_PROSE, *_DATA, *_CODE])


@dataclass(frozen=True)
class Question:
    text: str
    answer: str | None  # None: asked, but the answer is not known to us


class Corpus(ABC):
    """Text by split, and questions about it.

    `documents` says what a piece is: a document (a line, a person), or a chunk of one long text.
    """

    name: str
    fingerprint: str  # changes when the text or its split does
    documents: bool
    questions: dict[str, list[Question]]
    tokenizer: "Tokenizer | None" = None  # the one that its text became tokens by, if it did

    @abstractmethod
    def pieces(self, split: str) -> Iterator[str]:
        """The text of "train" or "validation"."""

    @abstractmethod
    def alphabet(self) -> Iterable[str]:
        """The text to train a tokenizer on: all there is, so that nothing is unknown later."""

    def characters(self, split: str) -> int:
        return sum(len(piece) for piece in self.pieces(split))

    def stream(self, split: str, tokenizer: "Tokenizer") -> "Stream | None":
        """The tokens of a split where they are there already; a ValueError if of another one."""
        return None


@runtime_checkable
class CorpusSettings(Protocol):
    """The settings of a corpus: what `corpus` in the registry names."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def load(self) -> Corpus: ...


def check_split(split: str) -> None:
    if split not in ("train", "validation"):
        raise ValueError(f"unknown split {split!r}; choose from train, validation")


class TextCorpus(Corpus):
    """One long text: the first part is for training, the rest for validation."""

    documents = False

    def __init__(
        self, name: str, chunks: Callable[[], Iterator[str]], validation: float = 0.1
    ) -> None:
        """`chunks` gives the text anew each time it is called."""
        check_value(TextFiles, "validation", validation)
        self.name, self._chunks = name, chunks
        self.questions = {"train": [], "dev": [], "test": []}
        digest, count = hashlib.sha256(), 0
        for chunk in chunks():
            digest.update(chunk.encode())
            count += len(chunk)
        if count == 0:
            raise ValueError(f"{name} is empty; name a file or folder with text in it")
        train = int(count * (1 - validation))
        if train < 2 or (validation > 0 and count - train < 2):
            raise ValueError(
                f"{name} is too short: {count} characters leave {train} to train on and "
                f"{count - train} for validation; both need 2 or more, or set corpus.validation=0"
            )
        self._lengths = {"train": train, "validation": count - train}
        digest.update(f"\0{train}".encode())
        self.fingerprint = digest.hexdigest()

    def pieces(self, split: str) -> Iterator[str]:
        check_split(split)
        train, place = self._lengths["train"], 0
        for chunk in self._chunks():
            border = min(max(train - place, 0), len(chunk))
            place += len(chunk)
            part = chunk[:border] if split == "train" else chunk[border:]
            if part:
                yield part
            if split == "train" and place >= train:
                return

    def alphabet(self) -> Iterator[str]:
        return self._chunks()

    def characters(self, split: str) -> int:
        check_split(split)
        return self._lengths[split]


KEPT = "it is the part of the text kept from training"
VALIDATION = "fraction of the text, at its end, that is kept for validation"


@settings
class PythonDocs:
    """The language reference that comes with Python itself, about 465,000 characters."""

    validation: float = setting(0.1, low=0, below=1, because=KEPT, about=VALIDATION)

    def load(self) -> TextCorpus:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ValueError(
                "this Python comes without pydoc_data.topics; name a text of your own: data=PATH"
            ) from None
        text = "\n".join(topics[name] for name in sorted(topics))
        return TextCorpus("python-docs", lambda: iter([text]), self.validation)


@settings
class TextFiles:
    """A file of text, or a folder: its text files in the order of their names, without runs."""

    path: str = setting("", about="the file or folder; data=PATH sets it too")
    validation: float = setting(0.1, low=0, below=1, because=KEPT, about=VALIDATION)

    def load(self) -> TextCorpus:
        if not self.path:
            raise ValueError("no text is named; write data=PATH with a file or a folder")
        path = check_exists(self.path)
        files = _files_under(path) if path.is_dir() else [path]
        states = [_state(file) for file in files]

        def chunks() -> Iterator[str]:
            for number, (file, state) in enumerate(zip(files, states, strict=True)):
                if _state(file) != state:
                    raise ValueError(f"{file} changed while it was in use; start again")
                if number:
                    yield "\n"
                yield from read_chunks(file)

        count = f", {len(files)} file{'s' if len(files) > 1 else ''}" if path.is_dir() else ""
        return TextCorpus(f"{path}{count}", chunks, self.validation)


def check_exists(path: str) -> Path:
    """The path, when something is there that can be asked for text; nothing is opened."""
    try:
        found = Path(path).expanduser()
        found.stat()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; data=PATH needs a file or a folder") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path!r} cannot be used as a path: {reason}") from None
    return found


def read_chunks(path: Path) -> Iterator[str]:
    """The text of a file, chunk by chunk; anything that is not UTF-8 text is refused."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = 0  # bytes of the chunks before this one
    try:
        _state(path)
        with path.open("rb") as file:
            while True:
                chunk = file.read(CHUNK)
                held = len(decoder.getstate()[0])  # bytes of a character cut in two
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{path} is not UTF-8 text: wrong byte at offset "
                        f"{before - held + error.start}; convert it to UTF-8"
                    ) from None
                if text:
                    yield text
                if not chunk:
                    return
                before += len(chunk)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    return "".join(read_chunks(path))


def _state(path: Path) -> tuple[int, int]:
    """What changes when the file does. Opening a FIFO would wait for ever, so it is asked first."""
    try:
        state = path.stat()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; data=PATH needs a file or a folder") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(state.st_mode):
        raise ValueError(f"{path} is {_kind(state.st_mode)}; text comes from a file or a folder")
    return state.st_size, state.st_mtime_ns


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something special")


def _is_written_by_us(folders: list[str], names: list[str]) -> bool:
    """What is in a run, a study or a comparison."""
    run = "checkpoints" in folders and "config.json" in names
    return run or ("parts" in folders and "settings.json" in names)


def _files_under(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None

    found: list[Path] = []
    for where, folders, names in os.walk(folder, onerror=refuse):
        if _is_written_by_us(
            folders, names
        ):  # which would learn its own logs, and changes with them
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(where) / name for name in names if not name.startswith(".")]
        found += [p for p in paths if p.suffix.lower() in SUFFIXES and p.is_file()]
    if not found:
        raise ValueError(f"{folder} holds no text files; they end in .txt, .md, .py or alike")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())
