"""Checkpoints that several processes write and read together, each its own rows.

No process ever has all of the weights. To save, the first makes a new folder, each writes its shard
there, forces it to the disk and tells sizes and hashes; when all have, the first writes what is no
tensor, the manifest last, and renames. Where one fails, all raise its error and nothing has
changed. A process that is lost takes the others along (heartbeat.py), and what it was writing has
no manifest.

What is done together is a generator, `Work`: it yields what each process does by itself, and is
sent what all of them answer. So it can be done at once, or beside the steps (shard_writer.py).
"""

import dataclasses
import errno
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from attnlab import files, json_files
from attnlab.training import checkpoint, shard_files
from attnlab.training.checkpoint import Checkpoint, NotFinite
from attnlab.training.shard_files import Spec
from attnlab.training.shards import Cut, cut_of, is_sharded, join, own
from attnlab.training.tensor_file import TensorFile
from attnlab.training.verified_file import BrokenCheckpoint, Described
from attnlab.training.writer import Save

if TYPE_CHECKING:
    from attnlab.training.parallel import World

T = TypeVar("T")
Act = Callable[[], str]  # of one process, which waits for no other
Work = Generator[Act, list[str], T]
Heed = Callable[[], None]
ERRORS: dict[str, Callable[[str], Exception]] = {
    "NotFinite": NotFinite,
    "BrokenCheckpoint": BrokenCheckpoint,
    "ValueError": ValueError,
}


def together(world: "World", act: Act) -> list[str]:
    """What each process answers; where one raised, all raise the first of these errors."""
    return heard(world.gather(answer(act)))


def answer(act: Act) -> str:
    """What an act says or raises, to be told to the others."""
    try:
        said = {"said": act()}
    except (OSError, NotFinite, ValueError) as error:
        said = {"kind": type(error).__name__, "error": str(error)}
        if isinstance(error, OSError):
            said = {
                "kind": "",
                "error": error.strerror or str(error),
                "code": str(error.errno or 0),
            }
    return json.dumps(said)


def heard(said: list[str]) -> list[str]:
    answers = [json.loads(one) for one in said]
    for one in answers:
        if "error" in one:
            if one["kind"] == "":
                raise OSError(int(one["code"]), one["error"])
            raise ERRORS.get(one["kind"], ValueError)(one["error"])
    return [one["said"] for one in answers]


def advance(work: Work[T], said: list[str]) -> Act:
    """What comes next; a StopIteration with the result at the end."""
    try:
        answers = heard(said)
    except (OSError, NotFinite, ValueError) as error:
        return work.throw(error)
    return work.send(answers)


def at_once(world: "World", work: Work[T]) -> T:
    """All processes wait for each other."""
    try:
        act = next(work)
        while True:
            act = advance(work, world.gather(answer(act)))
    except StopIteration as end:
        found: T = end.value
        return found


def of_first(world: "World", act: Act) -> str:
    """What the first process answers, heard by all; its error is raised by all."""
    return together(world, _first(world, act))[0]


def _first(world: "World", act: Act) -> Act:
    return lambda: act() if world.first else ""


@dataclass(frozen=True)
class Shard:
    """What this process has of a save: its own rows, where no other copy of them is written."""

    save: Save
    cut: Cut
    specs: shard_files.Index

    @staticmethod
    def of(save: Save) -> "Shard":
        kept = save.kept
        cut = next(cut_of(one) for one in kept.model.values() if is_sharded(one))
        tensors = {"model": kept.model, "optimiser": kept.optimiser}
        specs = {
            kind: {
                name: Spec.of(one, cut.shards, cut=is_sharded(one)) for name, one in some.items()
            }
            for kind, some in tensors.items()
        }
        mine = {
            kind: {} if cut.copy else {name: own(one) for name, one in some.items()}
            for kind, some in tensors.items()
        }
        return Shard(dataclasses.replace(save, kept=dataclasses.replace(kept, **mine)), cut, specs)


def saving(world: "World", shard: Shard, heed: Heed = lambda: None) -> Work[None]:
    """As Save.write."""
    save, kept, cut = shard.save, shard.save.kept, shard.cut
    folder = save.run.checkpoints / checkpoint.name_of(save.step)

    def begin() -> str:
        checkpoint.refuse_not_finite(save.step, "weights", kept.model)
        checkpoint.refuse_not_finite(save.step, "optimiser", kept.optimiser)
        if not world.first:
            return ""
        save.ready()
        return str(checkpoint.begin(folder))

    def write() -> str:
        tensors = {"model": kept.model, "optimiser": kept.optimiser}
        if cut.copy:
            return "{}"
        return json.dumps(write_shard(temporary, cut, tensors, shard.specs, heed))

    def end() -> str:
        finish(temporary, folder, save.step, kept, entries, shard.specs)
        if save.later:
            save.run.forget_result()
        return ""

    try:
        temporary = Path((yield begin)[0])
        written = yield write
        entries = {name: one for said in written for name, one in json.loads(said).items()}
        yield _first(world, end)
    except OSError as error:
        raise checkpoint.not_written(folder, error) from None
    except NotFinite:
        checkpoint.remove_unfinished(folder)
        raise
    yield from _retaining(world, save)


def write_shard(
    temporary: Path,
    cut: Cut,
    tensors: Mapping[str, Mapping[str, Tensor]],
    specs: shard_files.Index,
    heed: Heed = lambda: None,
) -> dict[str, object]:
    """Write the files of one shard, and describe them for the manifest."""
    entries: dict[str, object] = {}
    for kind, some in tensors.items():
        held = shard_files.held_by(some, specs[kind], cut.shard)
        content = Described(TensorFile(held, heed))
        name = shard_files.name_of(kind, cut.shard, cut.shards)
        files.write_new(temporary / name, content)
        entries[name] = content.entry()
    return entries


def finish(
    temporary: Path,
    folder: Path,
    step: int,
    kept: Checkpoint,
    entries: dict[str, object],
    specs: shard_files.Index,
) -> str:
    """With all shards on the disk: what is no tensor, the manifest, and the new name."""
    if not temporary.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"{temporary} is gone")
    missing = [name for name in entries if not (temporary / name).is_file()]
    if missing:
        raise ValueError(
            f"{temporary} has no {missing[0]}, which another process has written: all machines of "
            "a training need one folder of runs, on a disk that they share"
        )
    contents = checkpoint.plain_files(kept)
    contents[shard_files.INDEX] = json_files.as_json(shard_files.as_plain(specs), indent=None)
    described = entries | {name: checkpoint.entry_of(one) for name, one in contents.items()}
    contents["manifest.json"] = checkpoint.manifest(checkpoint.SHARDED, step, described)
    for name, content in contents.items():  # the manifest is the last of them
        files.write_new(temporary / name, content)
    checkpoint.put_in_place(temporary, folder)
    return folder.name


def _retaining(world: "World", save: Save) -> Work[None]:
    """Delete what is outdated, once all have read back what is newer."""
    parent = save.run.checkpoints

    def outdated() -> str:
        return json.dumps([str(one) for one in save.outdated()])

    old = [Path(one) for one in json.loads((yield _first(world, outdated))[0])]
    if not old:
        return
    good = (yield from _newest(world, parent))[0]

    def discard() -> str:
        for folder in old:
            if good is not None and checkpoint.step_of(folder) < checkpoint.step_of(good):
                checkpoint.discard(folder)
        return ""

    yield _first(world, discard)


def newest_good(world: "World", parent: Path) -> tuple[Path | None, list[str]]:
    """As checkpoint.newest_good; processes share out what is to be read."""
    if world.size == 1:
        return checkpoint.newest_good(parent)
    return at_once(world, _newest(world, parent))


def _newest(world: "World", parent: Path) -> Work[tuple[Path | None, list[str]]]:
    def every() -> str:
        return json.dumps([str(one) for one in checkpoint.all_in(parent)])

    broken = []
    for folder in map(Path, json.loads((yield _first(world, every))[0])):
        try:
            yield lambda folder=folder: verify(folder, world)  # type: ignore[misc]
        except BrokenCheckpoint as error:
            broken.append(str(error))
        else:
            return folder, broken
    return None, broken


def verify(folder: Path, world: "World") -> str:
    checkpoint.verify(folder, world.rank, world.size)
    return ""


def load(folder: Path, model: Mapping[str, Tensor], optimiser: Mapping[str, Tensor]) -> Checkpoint:
    """A checkpoint to go on from: of what is in shards here, the rows of this process alone.

    A tensor without a place here, or of another shape, comes without numbers: it will be refused.
    """
    tensors = checkpoint.open_tensors(folder)
    return Checkpoint(
        _rows(tensors, "model", model),
        _rows(tensors, "optimiser", optimiser),
        checkpoint.read_plain(folder, "config.json"),
        checkpoint.read_plain(folder, "tokenizer.json"),
        checkpoint.read_plain(folder, "state.json"),
    )


def _rows(
    tensors: shard_files.ShardFiles, kind: str, places: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    specs = tensors.index[kind]
    fitting = {
        name: places[name]
        for name, spec in specs.items()
        if name in places and tuple(places[name].shape) == spec.shape
    }
    wanted = {
        name: cut_of(one).rows(specs[name].rows) if is_sharded(one) else (0, specs[name].rows)
        for name, one in fitting.items()
    }
    found = tensors.read(kind, wanted)
    for name, one in fitting.items():
        if is_sharded(one):
            found[name] = join(found[name].to(one.device, one.dtype), one)
    return found | {
        name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        for name, spec in specs.items()
        if name not in fitting
    }
