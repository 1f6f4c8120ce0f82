"""What mutants showed and was mended: the bug is found by its property, its twin is not."""

import pytest
import torch

from attnlab.audit.bugs.mutations import CASES
from attnlab.audit.contract import Contract
from attnlab.audit.examine import all_properties, examine
from attnlab.audit.own import seed_rng
from attnlab.audit.subject.adapters import subject_for

PROPERTIES = {one.name: one for one in all_properties()}


def findings(subject, contract, name):
    with seed_rng():
        (found,) = examine(subject, contract, properties=[PROPERTIES[name]]).findings
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bug_is_found_and_its_twin_is_not(case):
    (name,) = case.reasons
    wrong, right = (findings(case.subject(one), case.contract, name) for one in (True, False))
    assert wrong.verdict == "fail" and wrong.example is not None, wrong.detail
    assert right.verdict == "pass", right.detail


def test_a_mask_without_the_own_key_is_a_choice_where_the_first_query_has_it():
    """As in attention with keys that are the queries: a token sees itself if nothing else."""

    def attention(q, k, v):
        t = q.shape[2]
        seen = torch.ones(t, t, dtype=torch.bool).tril(-1)
        seen[0, 0] = True
        return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    found = findings(subject_for(attention, {}, "a"), Contract(causal=True), "heads")
    assert found.verdict != "fail", found.detail


def test_a_mask_without_the_own_key_is_nobodys_business_if_nothing_is_declared():
    case = next(one for one in CASES if one.name == "own-key-hidden")
    assert findings(case.subject(True), Contract(), "heads").verdict != "fail"


@pytest.mark.parametrize(("width", "verdict"), [(8, "pass"), (32, "fail")])
def test_bent_scores_have_the_scale_of_small_ones(width, verdict):
    def attention(q, k, v):
        t = q.shape[2]
        scores = 5 * torch.tanh(q @ k.mT / width**0.5 / 5)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ v

    subject = subject_for(attention, {}, "a")
    found = findings(subject, Contract(scale=8**-0.5), "scale")
    assert found.verdict == verdict, found.detail
    assert found.measured == pytest.approx(width**-0.5, rel=1e-4)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "pass"), (-1, "fail")])
def test_weights_that_add_up_to_minus_one_are_no_choice(sign, verdict):
    def attention(q, k, v):
        t = q.shape[2]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return sign * (q @ k.mT).masked_fill(future, -torch.inf).softmax(-1) @ v

    found = findings(subject_for(attention, {}, "a"), Contract(causal=True), "weights")
    assert found.verdict == verdict, found.detail


def test_stick_breaking_attention_needs_no_weight_for_its_own_key():
    def attention(q, k, v):
        t = q.shape[2]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        past = torch.ones(t, t, dtype=torch.bool).tril(-1)
        left = torch.nn.functional.logsigmoid(-scores).masked_fill(~past, 0)
        rest = left.flip(-1).cumsum(-1).flip(-1) - left
        logs = torch.nn.functional.logsigmoid(scores) + rest
        return logs.masked_fill(~past, -torch.inf).exp() @ v

    found = findings(subject_for(attention, {}, "a"), Contract(causal=True), "heads")
    assert found.verdict != "fail", found.detail
