"""Packed documents: what leaks where something is left out, and one row by hand."""

import pytest
import torch

from attnlab.models.transformer import Transformer
from attnlab.theory.packing import PackingIsOneByOne, Row

SMALL = {"documents": 3, "longest": 6, "rows": 1}
LOGITS, GRADIENTS, MOVED, ITSELF = range(4)


def met(**changes):
    return [one.met for one in PackingIsOneByOne(**SMALL | changes).run().measures]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_verdict_does_not_hang_on_the_seed(seed):
    claim = PackingIsOneByOne(**SMALL, seed=seed)
    assert claim.run().verdict == "holds" and claim.with_knob().run().verdict == "refuted"


@pytest.mark.parametrize("changes", [{"documents": 2, "longest": 2}, {"longest": 40}])
def test_it_holds_at_the_ends_of_the_settings(changes):
    assert all(met(**changes))


def test_without_segments_documents_move_each_other():
    assert met(segments=False) == [False, False, False, True]


def test_positions_that_run_on_change_outputs_and_let_no_document_move_another():
    assert met(anew=False) == [False, False, True, True]


def test_rows_have_a_document_of_one_token_and_the_longest():
    rows = [PackingIsOneByOne()._row(number) for number in range(4)]
    assert all(row.lengths[:2] == [1, 13] for row in rows)
    assert len({tuple(row.lengths) for row in rows}) == 4
    assert all(row.tokens.shape == (1, sum(row.lengths)) for row in rows)


def test_documents_are_run_one_by_one_and_put_side_by_side():
    row = Row([2, 1], torch.tensor([[5, 7, 9]]))

    def model(tokens):  # what has been read so far
        return tokens.cumsum(1)[..., None]

    assert row.run_alone(model)[0, :, 0].tolist() == [5, 12, 9]


def test_a_model_that_attends_to_one_document_more_is_refuted(monkeypatch):
    """The last two documents share a number."""
    forward = Transformer.forward

    def merged(self, tokens, *, segments=None, **options):
        if segments is not None:
            segments = segments.clamp(max=int(segments.max()) - 1)
        return forward(self, tokens, segments=segments, **options)

    monkeypatch.setattr(Transformer, "forward", merged)
    assert met() == [False, False, False, True]


def test_a_model_that_moves_with_no_token_proves_nothing(monkeypatch):
    monkeypatch.setattr(Transformer, "forward", lambda self, x, **options: _constant(self, x))
    assert met() == [True, True, True, False]


def _constant(model, tokens):
    """Logits that depend on parameters and on the token vectors by 0."""
    parts = sum(one.sum() for one in model.parameters())
    return torch.ones(*tokens.shape, 11).double() * parts + 0 * model.embed(tokens).sum()
