"""Texts and answers of a run in a real browser, as they are generated."""

import shutil

import pytest
from training.recipes import begin, text_recipe


@pytest.fixture
def slow_run(run_folders):
    """It reads the whole text again for every token, so that there is time to stop it."""
    words = ["model=prefix-birnn", "model.width=16", "context=64", "evaluate_every=none"]
    recipe = text_recipe(run_folders.parent / "text.txt", *words, "steps=1")
    run, _ = begin(run_folders, recipe, "slow")
    yield run.folder.name
    shutil.rmtree(run.folder)


def test_text_is_streamed_and_stopped(tab, slow_run):
    page = tab.open(f"generate?run={slow_run}")
    page.get_by_label("Prompt").fill("The list")
    page.get_by_label("tokens as a number").fill("40")
    page.get_by_role("button", name="Write on").click()
    tab.wait("document.querySelector('[role=status].note').textContent.includes('per second.')")
    assert len(tab.text(".written")) >= 30 and "tokens=40" in page.url
    page.get_by_label("tokens as a number").fill("512")
    page.get_by_role("button", name="Write on").click()
    tab.wait("document.querySelector('.written').textContent.length > 5")
    page.get_by_role("button", name="Stop").click()
    tab.wait("document.querySelector('[role=status].note').textContent === 'Stopped.'")
    stopped = tab.text(".written")
    page.wait_for_timeout(300)
    assert tab.text(".written") == stopped


def test_a_question_is_answered_with_its_confidence(tab, run_folders):
    name = next(one.name for one in run_folders.iterdir() if "people" in one.name)
    page = tab.open(f"generate?run={name}")
    page.get_by_label("Question").fill("Where was Ann Hart born?")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector(".ask .shares li")
    assert "confidence of" in tab.text(".answer")
