"""The claims about bidirectional networks, against numbers that were found another way."""

import itertools
import math

import numpy as np
import pytest
from torch import nn

from attnlab.models.recurrent import BidirectionalSettings
from attnlab.theory import recurrent
from attnlab.theory.claim import EQUAL, Judgement
from attnlab.theory.draw import random_module
from attnlab.theory.recurrent import BirnnIsNoLm, BirnnOfPrefixIsLm

CLAIMS = [BirnnIsNoLm, BirnnOfPrefixIsLm]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_documents_are_judged_by_their_own_recipe_also_when_the_knob_is_turned(claim):
    found = claim().run().judgements
    assert claim().with_knob().run().judgements == found
    assert set(found.values()) == {Judgement("right", "right")}


def test_totals_equal_a_sum_by_hand():
    """One unit, two tokens, two steps: everything written out."""
    claim = BirnnIsNoLm(vocabulary=2, length=2, width=1, seed=5)
    settings = BidirectionalSettings(vocabulary=2, width=1)
    reader = random_module(settings.build, 5, "network 0")
    number = {name: parameter.numpy() for name, parameter in reader.named_parameters()}

    def states(side, tokens):
        state, found = 0.0, []
        for token in tokens:
            drive = number[f"network.{side}.from_input.weight"] * number["embed.weight"][token]
            kept = number[f"network.{side}.from_hidden.weight"] * state
            state = np.tanh(kept + drive + number[f"network.{side}.from_input.bias"]).item()
            found.append(state)
        return found

    total = 0.0
    for text in itertools.product(range(2), repeat=2):
        tokens = [0, *text]
        ahead, back = states("ahead", tokens), states("back", tokens[::-1])[::-1]
        product = 1.0
        for time, token in enumerate(text):
            joined = number["network.from_ahead.weight"] * ahead[time]
            joined = joined + number["network.from_back.weight"] * back[time]
            hidden = np.tanh(joined + number["network.from_ahead.bias"]).item()
            logits = number["head.weight"][:, 0] * hidden + number["head.bias"]
            product *= np.exp(logits[token]) / np.exp(logits).sum()
        total += product
    assert claim.run().details[0].rows[0][1] == pytest.approx(total, rel=1e-13)


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (3, 4), (5, 3)])
def test_a_network_made_to_copy_gives_every_text_a_probability_near_1(vocabulary, length):
    lead = 10 * math.tanh(10 * math.tanh(10 * math.tanh(10)))
    each = 1 / (1 + (vocabulary - 1) * math.exp(-lead))
    texts = recurrent._texts(vocabulary, length)
    assert texts.shape == (vocabulary**length, length + 1)
    total = recurrent._total(recurrent._copying_network(vocabulary), texts)
    assert total == pytest.approx((vocabulary * each) ** length, rel=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_stays_below_its_bound(seed):
    """In float32, where it is large enough to be seen against float64."""
    settings = BidirectionalSettings(vocabulary=3, width=4)
    reader, texts = random_module(settings.build, seed, "network"), recurrent._texts(3, 4)
    exact = recurrent._total(reader, texts)
    # the bound of float64 is in proportion to its epsilon as long as it is small
    bound = recurrent._rounding(reader, 4, len(texts)) * 2.0**29 * exact
    assert 0 < abs(recurrent._total(reader.float(), texts) - exact) < bound


def test_the_bound_on_rounding_stays_a_number_for_any_weights():
    settings = BidirectionalSettings(vocabulary=3, width=4)
    reader = random_module(settings.build, 0, "network")
    small = recurrent._rounding(reader, 4, 81)
    reader.network.back.from_hidden.weight.mul_(1e9)
    assert small < 1e-6 < 1 < recurrent._rounding(reader, 4, 81) < 2


@pytest.mark.parametrize("shape", [(2, 1, 1), (4, 3, 7), (5, 2, 16)])
def test_the_claims_hold_for_other_vocabularies_lengths_and_widths(shape):
    vocabulary, length, width = shape
    settings = {"vocabulary": vocabulary, "length": length, "width": width, "models": 2}
    for claim in (BirnnIsNoLm, BirnnOfPrefixIsLm):
        assert claim(**settings).run().verdict == "holds"
        assert claim(**settings).with_knob().run().verdict == "refuted"


def test_a_prefix_that_is_one_token_too_long_is_found_out(monkeypatch):
    def peeking(model, texts):
        logs = model(texts)[:, 1:].log_softmax(-1)
        return float(logs.gather(2, texts[:, 1:, None]).sum((1, 2)).exp().sum())

    monkeypatch.setattr(recurrent, "_total", peeking)
    evidence = BirnnOfPrefixIsLm().run()
    assert evidence.verdict == "refuted"
    assert {found.conclusion for found in evidence.judgements.values()} == {"wrong"}


class Forgetful(nn.Module):
    """x₁ is never read."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, tokens):
        read = tokens.clone()
        read[:, 1] = 0
        return self.network(read)


def test_a_token_of_the_prefix_that_is_never_read_is_found_out():
    texts, network = recurrent._texts(3, 4), BirnnOfPrefixIsLm()._network(0, "last")
    assert recurrent._least_influence(network, texts) > 1e-6
    assert recurrent._least_influence(Forgetful(network), texts) <= EQUAL
    assert (
        recurrent._least_influence(network, recurrent._texts(3, 1)) == math.inf
    )  # x₁ has none before it


def test_the_last_h_of_a_prefix_has_read_one_token_backwards():
    last, mean, whole = (row[2] for row in BirnnOfPrefixIsLm().run().details[0].rows)
    assert last == 0 and mean > 0.01 and whole > 0.01


@pytest.mark.parametrize(
    ("claim", "settings"),
    [
        (BirnnIsNoLm, {"vocabulary": 1}),
        (BirnnIsNoLm, {"backward": -0.5}),
        (BirnnOfPrefixIsLm, {"length": 6}),
    ],
)
def test_settings_out_of_range_are_refused(claim, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        claim(**settings)
