"""Text that models write, all from one prompt."""

import pytest
from experiments.small import english
from training.recipes import text_recipe

from attnlab.data.corpora import TextCorpus
from attnlab.experiments import samples
from attnlab.training import launch
from attnlab.training.report import Report
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved


@pytest.mark.parametrize(
    ("text", "prompt"),
    [("ab\n\n  cdefgh", "cdef"), ("abcdef", "abcd"), ("\n\n\n", "\n\n\n")],
)
def test_a_prompt_begins_with_a_line(text, prompt):
    corpus = TextCorpus("test", lambda: iter(["x" * 100 + text]), len(text) / (100 + len(text)))
    assert "".join(corpus.pieces("validation")) == text
    assert samples.prompt_of(corpus, 4) == prompt


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = Run(folder / "one")
    recipe = text_recipe(english(folder / "text.txt"), "steps=2")
    launch.train_in(run, recipe, report=Report())
    return open_saved(str(run.folder), folder)


def test_what_is_written_stays_within_the_trained_length(saved):
    lengths = []
    hook = saved.model.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    assert len(samples.write(saved, [0, 1, 2], 3 * saved.recipe.length + 1)) == (
        3 * saved.recipe.length + 1
    )
    hook.remove()
    assert max(lengths) <= saved.recipe.length


def test_all_models_continue_the_same_prompt_with_the_same_random_numbers(saved):
    found = samples.write_all([("a", saved), ("b", saved)], "the cat", 7, 11)
    assert found["texts"]["a"] == found["texts"]["b"] and len(found["texts"]["a"]) == 11
    section = samples.section(found)
    assert "'the cat'" in section.text and "seed\n        7" in section.text
    assert [block.text[:7] for block in section.blocks] == ["the cat"] * 2
