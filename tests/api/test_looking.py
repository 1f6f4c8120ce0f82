"""`attnlab.attention`: the weights that the model computes with, and maps that are safe to show."""

from pathlib import Path

import numpy as np
import pytest
import torch

import attnlab
from attnlab.api.looking import Attention
from attnlab.training.saved import open_saved

EVIL = '"><script>alert(1)</script>'


def test_rows_are_distributions_over_what_came_before(training):
    found = attnlab.attention(training, "the fox")
    assert found.tokens == tuple("the fox") and found.weights.shape == (1, 2, 7, 7)
    assert np.allclose(found.weights.sum(-1), 1, atol=1e-6)
    assert not np.triu(found.weights, 1).any()
    assert [row["head"] for row in found.rows] == [0, 1]


def test_the_likeliest_next_tokens_are_those_of_the_model(training):
    found = attnlab.attention(training, "the lazy")
    saved = open_saved(str(training.path), training.path.parent)
    with torch.inference_mode():
        ids = torch.tensor([saved.tokenizer.encode("the lazy").tolist()])
        shares = saved.model(ids)[0, -1].softmax(-1)
    assert found.next[0][0] == saved.tokenizer.decode([int(shares.argmax())])
    assert found.next[0][1] == pytest.approx(float(shares.max()), rel=1e-5)


def test_one_head_can_be_taken_out(training):
    found = attnlab.attention(training, "the fox")
    one = found.head(0, 1)
    assert (one.weights == found.weights[0, 1]).all()
    assert one.table().columns[1:] == [f"{n} {token}" for n, token in enumerate("the fox")]
    assert one.table().rows[4][1] == pytest.approx(found.weights[0, 1, 4, 0])
    assert "attends most to" in repr(one) and one._repr_html_().count("<text") == 14
    with pytest.raises(attnlab.Error, match="layers 0 to 0 and heads 0 to 1"):
        found.head(1, 0)


@pytest.mark.parametrize(("text", "said"), [("", "empty"), ("a" * 257, "257 tokens; use 256")])
def test_a_text_that_cannot_be_read_is_one_line(training, text, said):
    with pytest.raises(attnlab.Error, match=said):
        attnlab.attention(training, text)


def test_tokens_are_shown_as_text():
    weights = np.tril(np.full((1, 1, 2, 2), 0.5))
    found = Attention(
        Path(EVIL) / "checkpoints" / "step_1", (EVIL, "\x07"), weights, ((EVIL, 1.0),)
    )
    for shown in (found, found.head(0, 0)):
        html = shown._repr_html_()
        assert "<script" not in html and "\x07" not in html + repr(shown)
    assert "&lt;" in found.head(0, 0)._repr_html_()
