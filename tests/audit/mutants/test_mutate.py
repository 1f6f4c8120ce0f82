"""A mutant is its original with one place rewritten, and nothing else is touched."""

import ast
import sys
import textwrap

import pytest
import torch

from attnlab.audit.mutants.equivalent import EQUIVALENT
from attnlab.audit.mutants.mutate import difference, mutants
from attnlab.audit.mutants.operators import OPERATORS
from attnlab.audit.mutants.subjects import HAND_WRITTEN, originals

BY_NAME = {one.name: one for one in originals()}


@pytest.fixture(scope="module")
def every():
    return {one.name: mutants(one, OPERATORS) for one in originals()}


def test_every_mutant_differs_in_one_line_and_parses(every):
    for several in every.values():
        for one in several:
            assert one.before != one.after and "⏎" not in one.before + one.after, one
            ast.parse(textwrap.dedent(one.changed))
            assert difference(one.scope, one.changed) == (one.before, one.after)
        whole, own = several[-1].sources, several[-1].original.sources
        changed = [difference(own[name], whole[name]) for name in own if own[name] != whole[name]]
        assert changed == [(several[-1].before, several[-1].after)]


def test_no_two_mutants_of_an_original_are_the_same_text(every):
    for several in every.values():
        texts = [(one.module, one.changed) for one in several]
        assert len(set(texts)) == len(texts)


def test_every_operator_finds_places_in_code_written_by_hand(every):
    names = {one.name for one in HAND_WRITTEN}
    used = {one.operator for name in names for one in every[name]}
    assert used == {operator.name for operator in OPERATORS}


def test_what_is_listed_as_equivalent_can_be_made(every):
    made = {one.key for several in every.values() for one in several}
    assert set(EQUIVALENT) <= made, set(EQUIVALENT) - made
    assert all(len(reason) > 20 for reason in EQUIVALENT.values())


def test_originals_are_what_their_files_are():
    from attnlab.audit.mutants.originals.plain import einsum_attention

    q, k, v = torch.randn(3, 2, 4, 11, 8, generator=torch.Generator().manual_seed(0))
    original = BY_NAME["einsum_attention"]
    assert torch.equal(original.code(original.sources)(q, k, v), einsum_attention(q, k, v))


def test_modules_that_are_executed_anew_are_put_back():
    from attnlab.models import transformer

    original = BY_NAME["our transformer, rotary"]
    before = {name: sys.modules.get(name) for name in original.modules}
    code = original.code(original.sources)
    assert {name: sys.modules.get(name) for name in original.modules} == before
    assert before["attnlab.models.transformer"] is transformer
    assert not isinstance(code, transformer.Transformer)


def test_a_rewritten_module_is_the_one_that_others_use(every):
    """The cache is in another module than the model."""
    uncounted = next(
        one
        for one in every["our transformer, rotary"]
        if one.before == "self._stop = start + count" and one.after == "pass"
    )
    outs = []
    for one in (uncounted, uncounted.original.correct):
        subject = one.subject()
        cache, x = subject.new_cache(), subject.draw(1, 5, 0)
        subject.step(x[:, :3], cache)
        try:
            outs.append(subject.step(x[:, 3:], cache))
        except Exception as error:
            outs.append(torch.zeros(0))
            assert "mutant" not in str(error)
    assert not torch.equal(*outs)
