"""The answer: where models part, what it says when it cannot tell, and what it does not claim."""

import json
from dataclasses import dataclass
from math import isnan

import pytest
import torch
from torch import nn

from attnlab.audit.errors import InputError
from attnlab.doctor.case import Case, Change, apart
from attnlab.doctor.cause import Cause
from attnlab.doctor.causes.rotary import RotaryBase
from attnlab.doctor.diagnosis import diagnose
from attnlab.doctor.page import report
from attnlab.doctor.pairs.pairs import ALONE
from attnlab.doctor.pairs.separate import Separate
from attnlab.doctor.pairs.style import Style
from attnlab.doctor.patient import made
from attnlab.doctor.words import sentences

PLAIN = Style()


def case(a=PLAIN, b=PLAIN):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        one, other = Separate(a), Separate(b)
    return Case(made(one, "a"), made(other, "b"))


def pair(name):
    return next(one for one in ALONE if one.name == name).case()


def test_the_first_place_is_where_the_change_is():
    found = diagnose(case(b=Style(first_layer_scale=0.5)), causes=[])
    first = found.parting.first
    assert (first.a, first.b, first.position) == ("layers.0.attention.wo",) * 2 + (1,)
    assert [name for name, _ in found.parting.growth] == ["layers.0", "layers.1"]


def test_a_rotation_parts_at_the_queries_of_position_one():
    first = diagnose(pair("interleaved"), causes=[]).parting.first
    assert (first.a, first.position, first.head) == ("layers.0.attention queries", 1, 0)


def test_the_json_has_the_promised_keys():
    plain = diagnose(pair("another base")).plain()
    first = plain["first_difference"]
    assert plain["equal"] is False and plain["error_after"] < 1e-12 < plain["error_before"]
    assert plain["causes"] == [{"name": "rotary-base", "a": "10000", "b": "500000"}]
    assert (first["position"], first["head"]) == (1, 0)


@dataclass(frozen=True)
class Twin(Cause):
    """The same change by another name."""

    def propose(self, case):
        for one in RotaryBase().propose(case):
            yield Change(cause="twin", a=one.a, b=one.b, patch_a=one.patch_a)


def test_of_two_causes_that_fit_none_is_preferred():
    found = diagnose(pair("another base"), causes=[RotaryBase(), Twin()])
    assert [[one.cause for one in some] for some in found.sets] == [["rotary-base"], ["twin"]]
    assert any("cannot tell" in line and "twin" in line for line in sentences(found))
    assert found.plain()["cannot_tell_from"][0][0]["name"] == "twin"


def test_weights_that_are_not_carried_are_not_taken_for_equal():
    class Strange(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.vocab_size, self.inner = 11, nn.ModuleDict({name: nn.Embedding(11, 6)})
            self.twice = nn.ModuleDict({f"{name}2": nn.Linear(6, 6), f"{name}3": nn.Linear(6, 6)})

        def forward(self, tokens):
            x = next(iter(self.inner.values()))(tokens)
            one, other = self.twice.values()
            return one(other(x))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        a = made(Strange("blue"), "a")
        torch.manual_seed(0)
        b = made(Strange("red"), "b")
    found = diagnose(Case(a, b))
    assert not found.equal and len(found.alone_b) == 4  # the same seed made the same weights
    assert any("without a partner" in line for line in sentences(found))


def test_a_side_that_gives_no_numbers_beside_padding_is_not_equal(monkeypatch):
    class Fragile(Separate):
        def forward(self, tokens, attention_mask=None):
            out = super().forward(tokens, attention_mask)
            padded = attention_mask is not None and not attention_mask[:, 0].all()
            return out * float("nan") if padded else out

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = diagnose(Case(made(Separate(Style()), "a"), made(Fragile(Style()), "b")))
    assert not found.equal and found.exit_code == 1 and found.error_before < 1e-12
    assert "B gives no numbers" in next(iter(sentences(found)))


class Broken(Separate):
    """Its last output is no number from a length on."""

    def __init__(self, style, broken=float("nan"), first=7):
        super().__init__(style)
        self.broken, self.first = broken, first

    def forward(self, tokens, attention_mask=None):
        out = super().forward(tokens, attention_mask)
        return (
            out
            if tokens.shape[1] < self.first
            else torch.cat([out[:, :-1], out[:, -1:] * self.broken], 1)
        )


def broken(a, b):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Case(made(a, "one"), made(b, "other"))


def test_two_that_give_nan_cannot_be_compared():
    pair = broken(Broken(PLAIN), Broken(Style(layout="interleaved")))
    with pytest.raises(InputError, match="one gives NaN for a text of 7 tokens, and so does other"):
        diagnose(pair)


@pytest.mark.parametrize("turned", [False, True])
def test_nan_on_one_side_is_a_difference_and_told(turned):
    pair = [Separate(PLAIN), Broken(PLAIN)]
    found = diagnose(broken(*(pair[::-1] if turned else pair)), causes=[])
    told = "A gives NaN where B gives numbers" if turned else "B gives NaN where A gives numbers"
    assert not found.equal and any(line.startswith(told) for line in sentences(found))


def test_what_is_infinite_is_null_in_json():
    found = diagnose(broken(Separate(PLAIN), Broken(PLAIN, float("inf"))), causes=[])
    plain = found.plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["error_before"] is None and plain["first_difference"]["error"] is None


def trained(style, change):
    """As a folder or a run: with weights of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one, other = Separate(style), Separate(style)
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        change(other)
    patients = made(one, "base"), made(other, "finetuned")
    patients[1].trained = True
    return diagnose(Case(*patients), causes=[])


def test_weights_that_were_replaced_are_counted_and_told():
    found = trained(PLAIN, lambda model: model.layers[0].attention.wq.weight.mul_(2))
    first, second, *_ = sentences(found)
    assert found.equal and first.startswith("equal with the weights of A in both: ")
    assert second.startswith("B's own weights were replaced by A's: 1 of 21 tensors differ")
    own = found.plain()["own_weights"]
    assert (own["replaced"], own["differ"]) == (21, 1) and own["error"] > 1e-3


def test_weights_that_are_the_same_are_told_to_be():
    found = trained(PLAIN, lambda model: None)
    first, second, *_ = sentences(found)
    assert first.startswith("equal: ") and "which are the same (21 tensors)" in second


def test_a_window_longer_than_the_usual_text_is_seen():
    found = diagnose(case(Style(window=60), Style(window=61)))
    assert [one.cause for one in found.causes] == ["window"]
    assert max(found.lengths) > 2 * 61


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_on_one_side_is_infinitely_far(broken):
    one = torch.zeros(2, 3, 4)
    other = one.clone()
    other[0, 1, 2] = broken
    assert apart(one, other) == apart(other, one) == float("inf")
    assert apart(other, other) == (float("inf") if isnan(broken) else 0)


def test_the_page_has_answer_causes_and_conversion():
    made_report = report(diagnose(pair("interleaved")), "attnlab diff a b")
    assert made_report.answer.startswith("Different: rotary-layout.")
    assert [one.heading for one in made_report.sections] == ["Why", "Where", "The conversion"]
