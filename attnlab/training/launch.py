"""From a preset and some overrides to a run: a new one, or one to resume."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab import config, files, json_files, registry
from attnlab.code.keep import keep_source
from attnlab.code.own import allow_named, refuse_other_code, refuse_unreached
from attnlab.data.corpora import Corpus
from attnlab.data.prepared.corpus import Prepared
from attnlab.data.prepared.corpus import settings_of as settings_of_prepared
from attnlab.data.prepared.folder import is_one as is_prepared
from attnlab.training import checkpoint, parallel, runs, sharded
from attnlab.training.lock import FolderGone
from attnlab.training.loop import Result, train
from attnlab.training.opened import with_model_of_start
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report, TensorBoard
from attnlab.training.setup import Setup, prepare, refuse_large_step
from attnlab.training.start import refuse_other_start
from attnlab.training.state import State
from attnlab.training.text import load_text, names_text, recorded


def recipe_for(preset: str, overrides: list[str], file: Path | None = None) -> Recipe:
    """Defaults < preset < file < overrides. `data=PATH` is short for the corpus of that path."""
    recipe: Recipe = registry.load("preset", preset)()
    return _with_file_and_overrides(with_model_of_start(recipe, overrides), overrides, file)


def _with_file_and_overrides(recipe: Recipe, overrides: list[str], file: Path | None) -> Recipe:
    """One after the other: what a word chooses anew brings nothing of the file along."""
    if file is not None:
        given = config.to_overrides(_settings_in(file))
        recipe = config.override(recipe, with_data(recipe, given))
    recipe = config.override(recipe, with_data(recipe, overrides))
    allow_named(recipe, overrides)  # a file may come from a stranger, words do not
    refuse_unreached(recipe.model, overrides)
    return recipe


def _settings_in(file: Path) -> json_files.Json:
    if file.exists() and not file.is_file():  # opening a FIFO would wait for ever
        raise ValueError(f"{file} is no file; --config needs settings as JSON")
    try:
        return json_files.parse_json(files.read_named(file), file)
    except OSError as error:
        raise ValueError(f"--config {file} cannot be read: {error.strerror}") from None


def with_data(recipe: Recipe, overrides: list[str]) -> list[str]:
    """`data=PATH` spelled out: the path of the preset's corpus, or text instead of it."""
    keys = [(config.split_override(word), word) for word in overrides]
    chosen = [text for (path, text), _ in keys if path == ["corpus"]]
    corpus = registry.load("corpus", chosen[-1])() if chosen else recipe.corpus
    at_first: list[str] = []  # what a prepared text says of itself; any other word wins
    spelled = []
    for (path, text), word in keys:
        if path != ["data"]:
            spelled.append(word)
            continue
        if not chosen and is_prepared(Path(text).expanduser()):
            at_first = settings_of_prepared(Path(text).expanduser())
            if any(other == ["tokenizer"] for (other, _), _ in keys):
                at_first = at_first[:1]  # and what it says is compared with the folder's
        elif not chosen and isinstance(corpus, Prepared):
            at_first = ["corpus=text"]
        elif not hasattr(corpus, "path"):
            if chosen:
                raise ValueError(f"corpus={chosen[-1]} is not read from a path; leave out data=")
            spelled.append("corpus=text")
        spelled.append(f"corpus.path={text}")
    return at_first + spelled


def launch(
    preset: str,
    overrides: list[str],
    *,
    root: Path,
    make_report: Callable[[World], Report],
    resume: str | None = None,
    file: Path | None = None,
    inspect: Callable[[Recipe], None] = lambda recipe: None,
) -> tuple[runs.Run, Result]:
    """Train; `resume` is None, "newest", "auto" (if there is one to resume) or a path.

    `inspect` sees the recipe before anything is made of it, and may refuse it.
    """
    preset = registry.find("preset", preset).name
    recipe = recipe_for(preset, overrides, file)
    run, begin = _find_resumable(preset, recipe, root, resume)
    said: list[str] = []

    def resumed(run: runs.Run, begin: Path | None, note: Callable[[str], None]) -> Recipe:
        before = run.recipe(begin, note)
        found = _with_file_and_overrides(before, overrides, file)
        refuse_other_code(before, found)
        for line in _changes(before, found):
            note(line)
        return found

    if run is not None and parallel.processes() == 1:
        begin = begin or _newest(run, said.append)
        recipe = resumed(run, begin, said.append)
    elif run is not None:  # as far as one process can tell: where it trains, how long it waits
        recipe = resumed(run, begin, lambda line: None)
    inspect(recipe)
    with parallel.world(recipe.device, recipe.timeout) as world:
        earlier = world.recall()
        if earlier or world.size > 1:
            if earlier and (Path(earlier) / "config.json").exists():  # the first process decides
                run, begin = runs.Run(Path(earlier)), None
            run, begin = _agree(world, run, begin, said.append)
            recipe = recipe if run is None else resumed(run, begin, said.append)
        report = make_report(world)
        for line in said:
            report.note(line)
        corpus = None if run is None else text_to_resume(run, begin, recipe, overrides)
        if run is not None and begin is None:
            refuse_other_start(run, recipe, root, overrides)
        if begin is not None and checkpoint.step_of(begin) > recipe.steps:
            raise ValueError(
                f"steps is {recipe.steps}, and the run is at step {checkpoint.step_of(begin)} "
                "already; use more steps"
            )
        setup = prepare(recipe, root, begin, report.note, corpus, world)
        refuse_large_step(setup.recipe, world)
        new = run is None
        if run is None:
            folder = world.broadcast(str(runs.create(root, preset).folder) if world.first else "")
            run = runs.Run(Path(folder))
        world.remember(str(run.folder.absolute()))
        with _undo_if_refused(run, new, world):
            result = _train(setup, run, world, report, begin)
        if new and world.first and not result.begun:
            files.remove_folder(run.folder)
        return run, result


def train_in(run: runs.Run, recipe: Recipe, *, report: Report, text: str = "") -> Result:
    """Train in a folder of one's own choice, from the beginning or from what is there already.

    `text` is the fingerprint that the text must have; empty: any.
    """
    with parallel.world(recipe.device, recipe.timeout) as world:
        corpus = recipe.corpus.load()
        if text and corpus.fingerprint != text:
            raise ValueError(
                f"the text has changed since this experiment began; restore {corpus.name}, and "
                "the same command goes on"
            )
        begin, _ = sharded.newest_good(world, run.checkpoints)
        setup = prepare(recipe, run.folder.parent, begin, report.note, corpus, world)
        refuse_large_step(setup.recipe, world)
        files.make_folder(run.checkpoints)
        return _train(setup, run, world, report, begin)


def _train(setup: Setup, run: runs.Run, world: World, report: Report, begin: Path | None) -> Result:
    if world.first:
        resolved = json_files.as_json(config.to_dict(setup.recipe))
        files.write_whole(run.folder / "config.json", resolved)
        keep_source(setup.recipe, run.folder)
        if setup.recipe.tensorboard:
            files.make_folder(run.folder / "tensorboard")  # its writer would follow a link
            report = TensorBoard(run.folder / "tensorboard", report)
    return train(setup, run, world, report, begin)


@contextmanager
def _undo_if_refused(run: runs.Run, new: bool, world: World) -> Iterator[None]:
    """A training that is refused before its first step leaves no run, and an old one unchanged.

    The manifest is written last before the first step, and never twice the same.
    """
    if world.first and not new and run.busy:
        raise ValueError(runs.busy_message(run.folder))
    kept, manifest = run.folder / "config.json", run.folder / "manifest.json"
    settings, begun, place = _bytes(kept), _bytes(manifest), _identity(run.folder)
    try:
        yield
    except FolderGone:
        raise  # a person's doing
    except Exception:
        same = _identity(run.folder) == place  # else it is another folder, of a person's own
        if world.first and same and _bytes(manifest) == begun:
            if new:
                files.remove_folder(run.folder)
            elif settings is not None:
                files.write_whole(kept, settings)
        raise


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _bytes(path: Path) -> bytes | None:
    """None for what is not there, or cannot be read: a link, or larger than any of ours."""
    try:
        return files.read(path, files.NAMED)
    except OSError:
        return None


def _find_resumable(
    preset: str, recipe: Recipe, root: Path, resume: str | None
) -> tuple[runs.Run | None, Path | None]:
    """The run to resume, and the checkpoint if that was named itself."""
    if resume is None:
        return None, None
    if resume not in ("auto", "newest"):
        run, named = runs.find(resume, root)
        if named is not None and parallel.processes() == 1:  # several share out the reading later
            checkpoint.read_verified(named)
        return run, named
    wanted = _comparable(config.to_dict(recipe)) if resume == "auto" else None
    for run in runs.all_in(root):
        fits = run.preset == preset and (wanted is None or _saved_settings(run) == wanted)
        begun = (run.folder / "manifest.json").exists() or checkpoint.all_in(run.checkpoints)
        if fits and begun and not run.finished and not run.busy:
            return run, None
    if resume == "newest":
        raise ValueError(
            f"there is no unfinished {preset} run in {root} to resume; leave out --resume, "
            "or name a run: --resume PATH"
        )
    return None, None


def _agree(
    world: World, run: runs.Run | None, begin: Path | None, note: Callable[[str], None]
) -> tuple[runs.Run | None, Path | None]:
    """The run that the first process has found, if any, and its newest checkpoint that is whole."""
    found = world.broadcast("" if run is None else str(run.folder))
    named = world.broadcast("" if begin is None else str(begin))
    if not found:
        return None, None
    run = runs.Run(Path(found))
    if named:
        begin = Path(named)
        sharded.together(world, lambda: sharded.verify(begin, world))
        return run, begin
    newest, broken = sharded.newest_good(world, run.checkpoints)
    _note_newest(newest, broken, note)
    return run, newest


def _saved_settings(run: runs.Run) -> dict[str, Any] | None:
    try:
        return _comparable(config.to_dict(run.recipe()))
    except (ValueError, OSError):
        return None


def text_to_resume(
    run: runs.Run, begin: Path | None, recipe: Recipe, overrides: list[str]
) -> Corpus | None:
    """The text that the run names, if it is the one it had; None if the person has named it."""
    if names_text(overrides):
        return None
    kept = {} if begin is None else checkpoint.read_plain(begin, "state.json")
    return load_text(recipe.corpus, recorded(run, State.from_json(kept)), run.folder)


def _comparable(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Settings to compare: as JSON has them, without the vocabulary, which the text decides."""
    copy: dict[str, Any] = json.loads(json.dumps(plain))
    copy["model"].pop("vocabulary", None)
    return copy


def _changes(before: Recipe, recipe: Recipe) -> list[str]:
    old, new = config.flat(config.to_dict(before)), config.flat(config.to_dict(recipe))
    return [
        f"resuming with {name}={new.get(name)} instead of {old.get(name)}"
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]


def note_resumed(run: runs.Run, report: Report) -> Path | None:
    """The newest good checkpoint of a run; those that were passed over are named."""
    return _newest(run, report.note)


def _newest(run: runs.Run, note: Callable[[str], None]) -> Path | None:
    newest, broken = checkpoint.newest_good(run.checkpoints)
    _note_newest(newest, broken, note)
    return newest


def _note_newest(newest: Path | None, broken: list[str], note: Callable[[str], None]) -> None:
    for line in broken:
        note(f"skipped: {line}")
    note(f"resuming from {newest or 'the beginning'}")
