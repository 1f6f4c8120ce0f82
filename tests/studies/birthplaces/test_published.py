"""Published figures stand in the docs with a link each, and are counted as they stand there."""

import re
from pathlib import Path

import pytest

from attnlab.studies.birthplaces import published
from attnlab.studies.birthplaces.report import ARMS

DOCS = Path(__file__).parents[3] / "docs"


def test_every_figure_is_a_link_to_its_file():
    page = (DOCS / "studies.md").read_text()
    linked = set(re.findall(r"\[(\d+\.\d)\]\((https://github\.com/\S+\.dev\.predictions)\)", page))
    expected = set()
    for repository in published.REPOSITORIES:
        assert re.fullmatch(r"[0-9a-f]{40}", repository.commit), repository.name
        for arm, file in published.RIGHT_FILES.items():
            if (accuracy := getattr(repository, arm)) is not None:
                expected.add((f"{accuracy:.1f}", repository.link(file)))
        if repository.rotary is not None:
            expected.add((f"{repository.rotary:.1f}", repository.link(published.ROTARY_FILE)))
    assert linked == expected


@pytest.mark.parametrize("page", ["studies.md", "studies/birthplaces.md"])
def test_the_tables_have_the_figures_as_they_are_counted(page):
    text = (DOCS / page).read_text()
    for arm in ARMS:
        if published.accuracies(arm):
            assert f"| {published.summary(arm)} |" in text, arm


def test_a_mistake_is_counted_where_it_belongs():
    assert published.accuracies("by-head") == [14.8]
    assert published.accuracies("growing") == [12.2, 21.6]
    assert 0.0 not in published.accuracies("rotary") and 17.2 not in published.accuracies("rotary")
    assert published.accuracies("one-wording") == [] and published.summary("one-wording") == ""
    assert published.summary("rotary") == "31.6 (24.4 to 40.4, 9 files)"
    # one person of 500 is 0.2 points
    for arm in ARMS:
        for accuracy in published.accuracies(arm):
            assert accuracy * 5 == pytest.approx(round(accuracy * 5))
