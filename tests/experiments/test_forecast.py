"""A forecast says what a training will be, and leaves nothing behind."""

import pytest
from compare.comparisons import FOUR, small_words
from experiments.small import InProcess
from training.recipes import begin, small

from attnlab.compare.comparison import Comparison
from attnlab.compare.parse import parse
from attnlab.experiments import costs
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.forecast import forecast, parts_of
from attnlab.experiments.match import count
from attnlab.experiments.progress import Progress
from attnlab.training import checkpoint


def notes(line):
    raise AssertionError(line)


def test_the_training_is_as_it_was_foretold(tmp_path):
    recipe = small("steps=3", "accumulate=2")
    found = forecast(recipe, tmp_path, notes)
    assert not list(tmp_path.iterdir())
    run, _ = begin(tmp_path, recipe)
    assert run.recipe() == found.recipe
    manifest = run.manifest()
    for name in ("parameters", "tokens", "epochs", "flops", "steps"):
        assert manifest[name] == getattr(found.opening, name)
    (last, *_) = checkpoint.all_in(run.checkpoints)
    tensors = [last / "model.safetensors", last / "optimiser.safetensors"]
    written = sum(path.stat().st_size for path in tensors)
    assert 0.9 * written < found.checkpoint <= written
    assert found.memory is None or found.memory > found.checkpoint
    assert found.opening.expected_seconds > 3 * found.opening.step_seconds > 0


def test_what_training_refuses_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a step needs .* GB or more"):
        forecast(small(f"batch={1 << 20}", "model.depth=40"), tmp_path, notes)
    with pytest.raises(ValueError, match="is no run and no checkpoint"):
        forecast(small(start="nowhere"), tmp_path, notes)


def test_parts_that_are_done_are_told_from_those_to_do(tmp_path):
    words = small_words(tmp_path, *FOUR[:2], "seeds=1")
    made, root = Comparison(parse(words), InProcess()), tmp_path / "there"
    before = parts_of("", made, root=root, again=False)
    assert not root.exists() and not any(part.done for part in before)
    assert all(part.seconds > 0 for part in before)
    carry_out("", made, root=root, progress=Progress())
    after = parts_of("", made, root=root, again=False)
    assert [part.name for part in after] == [part.name for part in before]
    assert all(part.done for part in after)
    assert not any(part.done for part in parts_of("", made, root=root, again=True))


@pytest.mark.parametrize(("seconds", "steps"), [(0.5, (5, 10)), (2.0, (20, 40))])
def test_equal_seconds_are_expected_to_take_those_seconds(tmp_path, monkeypatch, seconds, steps):
    """However many steps the recipes were written with: that is what the first estimate went by."""
    words = small_words(tmp_path, *FOUR[:2], "seeds=3", "match=seconds", f"seconds={seconds}")
    pace = {"learned": 0.1, "rotary": 0.05}
    made = Comparison(parse(words), InProcess())
    sizes = {count(recipe.model): pace[label] for label, recipe in made.recipes.items()}
    assert len(sizes) == 2
    monkeypatch.setattr(costs, "_step_seconds", lambda recipe: sizes[count(recipe.model)])
    assert tuple(recipe.steps for recipe in made.forecast().values()) == steps
    evaluating = made._expected(3, 1) - made._expected(3, 0)
    starting, trained = 4.0, made._expected(3, 0)
    assert trained == pytest.approx(starting + 3 * 2 * seconds) and evaluating > 0
