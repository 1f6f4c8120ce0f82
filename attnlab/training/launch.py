"""From a preset and some words to a run: a new one, or one to go on with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import config, files, registry
from attnlab.training import checkpoint, parallel, runs
from attnlab.training.loop import Result, train
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report, TensorBoard
from attnlab.training.setup import prepare
from attnlab.training.weights import flat


def recipe_for(preset: str, words: list[str], file: Path | None = None) -> Recipe:
    """Defaults < preset < file < words. `data=PATH` is short for the corpus of that path."""
    recipe: Recipe = registry.load("preset", preset)()
    given = [*(config.words_of(files.read_json(file)) if file else []), *words]
    return config.override(recipe, with_data(recipe, given))


def with_data(recipe: Recipe, words: list[str]) -> list[str]:
    """`data=PATH` spelled out: the path of the preset's corpus, or text instead of it."""
    spelled = []
    for word in words:
        path, text = config.split_word(word)
        if path == ["data"]:
            chosen = any(config.split_word(w)[0] == ["corpus"] for w in words)
            if not chosen and not hasattr(recipe.corpus, "path"):
                spelled.append("corpus=text")
            spelled.append(f"corpus.path={text}")
        else:
            spelled.append(word)
    return spelled


def launch(
    preset: str,
    words: list[str],
    *,
    root: Path,
    make_report: Callable[[World], Report],
    resume: str | None = None,
    file: Path | None = None,
) -> tuple[runs.Run, Result]:
    """Train; `resume` is None, "newest", "auto" (if there is one to go on with) or a path."""
    recipe = recipe_for(preset, words, file)
    with parallel.world(recipe.device) as world:
        report = make_report(world)
        run: runs.Run | None = None
        begin = None
        if resume is not None:
            run = world.told(_run_to_go_on(preset, recipe, root, resume) if world.first else None)
        if run is not None:
            recipe = _going_on(run, words, file, report)
            begin = _where_to_begin(run, resume or "", report)
        setup = prepare(recipe, root)
        if run is None:
            run = world.told(runs.create(root, preset) if world.first else None)
        assert run is not None
        if world.first:
            resolved = files.as_json(config.to_dict(setup.recipe))
            files.write_whole(run.folder / "config.json", resolved)
        if recipe.tensorboard and world.first:
            report = TensorBoard(run.folder / "tensorboard", report)
        return run, train(setup, run, world, report, begin)


def _run_to_go_on(preset: str, recipe: Recipe, root: Path, resume: str) -> runs.Run | None:
    if resume not in ("auto", "newest"):
        return runs.find(resume, root)[0]
    wanted = _settled(config.to_dict(recipe)) if resume == "auto" else None
    for run in runs.all_in(root):
        fits = f"-{preset}-" in run.folder.name and (wanted is None or _saved(run) == wanted)
        if fits and not run.finished and not run.busy:
            return run
    if resume == "newest":
        raise ValueError(
            f"there is no unfinished {preset} run in {root} to go on with; leave out --resume, "
            "or name a run: --resume PATH"
        )
    return None


def _saved(run: runs.Run) -> Any:
    try:
        return _settled(files.read_json(run.folder / "config.json"))
    except (ValueError, OSError):
        return None


def _settled(plain: Any) -> Any:
    """Settings to compare: as JSON has them, without the vocabulary, which the text decides."""
    plain = json.loads(json.dumps(plain))
    plain["model"].pop("vocabulary", None)
    return plain


def _going_on(run: runs.Run, words: list[str], file: Path | None, report: Report) -> Recipe:
    """The run's own settings, with what was said anew; the differences are named."""
    before = run.recipe()
    given = [*(config.words_of(files.read_json(file)) if file else []), *words]
    recipe = config.override(before, with_data(before, given))
    old, new = flat(config.to_dict(before)), flat(config.to_dict(recipe))
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            report.note(f"goes on with {name}={new.get(name)} instead of {old.get(name)}")
    return recipe


def _where_to_begin(run: runs.Run, resume: str, report: Report) -> Path | None:
    named = Path(resume)
    if named.parent.name == "checkpoints":
        checkpoint.verified(named)
        return named
    return goes_on(run, report)


def goes_on(run: runs.Run, report: Report) -> Path | None:
    """The newest good checkpoint of a run; those that were passed over are named."""
    newest, broken = checkpoint.newest_good(run.checkpoints)
    for line in broken:
        report.note(f"skipped: {line}")
    report.note(f"goes on from {newest or 'the beginning'}")
    return newest
