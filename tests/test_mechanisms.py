"""The catalogue of mechanisms says what is true: its lines work, its masks are the masks."""

import re
from pathlib import Path

import pytest
import torch

from attnlab import config
from attnlab.attention.positions import axis_of_pairs
from attnlab.kernels import Segments
from attnlab.kernels.mask import Mask
from attnlab.training.launch import recipe_for

TEXT = (Path(__file__).parent.parent / "docs/mechanisms.md").read_text()
# `model.soft_cap=50`; with several words it is one line
LINES = sorted(
    line
    for line in re.findall(r"`(model\.[^`]*)`", TEXT)
    if all(re.fullmatch(r"model\.\w+(\.\w+)*=\S+", word) for word in line.split())
)
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
MASKS = {
    "full": {},
    "window=3": {"window": 3},
    "chunk=3": {"chunk": 3},
    "prefix=3": {"prefix": torch.tensor([3])},
    "documents of 3, 4, 1": {"segments": Segments(DOCUMENTS, DOCUMENTS)},
}


def test_all_lines_are_found():
    assert len(LINES) > 20 and "model.soft_cap=50" in LINES


@pytest.mark.parametrize("line", LINES)
@torch.no_grad()
def test_a_line_turns_on_a_model_that_runs_and_is_no_usual_one(line):
    words = ["model.width=16", "model.depth=2", "model.attention.heads=2", "model.context=16"]
    usual = recipe_for("tiny", words).model
    words = [word for word in words if "heads" not in word] if "attention=" in line else words
    settings = recipe_for("tiny", [*words, *line.split()]).model
    assert config.to_dict(settings) != config.to_dict(usual)
    tokens = torch.zeros(1, 9, dtype=torch.long)
    assert settings.build().eval()(tokens).isfinite().all()


def test_the_masks_are_drawn_as_they_are():
    block = TEXT.split("```\n")[1].splitlines()
    assert re.split(r"\s{2,}", block[0].strip()) == list(MASKS)
    for column, options in enumerate(MASKS.values()):
        mask = Mask(queries=8, keys=8, device=torch.device("cpu"), **options).visible()[0]
        wanted = [" ".join("·■"[seen] for seen in row) for row in mask.int().tolist()]
        assert [line[18 * column : 18 * column + 15].strip() for line in block[1:]] == wanted


def test_the_axes_of_pairs_are_those_drawn():
    drawn = dict(re.findall(r"^in (blocks|turns) +([012 ]+[012])", TEXT, re.MULTILINE))
    for word, axes in drawn.items():
        wanted = axis_of_pairs((4, 3, 3), 10, alternate=word == "turns")
        assert list(map(int, axes.split()))[:10] == wanted
    assert len(drawn) == 2
