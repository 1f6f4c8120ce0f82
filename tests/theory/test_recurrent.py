"""The claims about recurrent networks, against numbers that were found another way."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from attnlab.models.recurrent import BidirectionalSettings
from attnlab.theory import recurrent
from attnlab.theory.draw import built
from attnlab.theory.recurrent import BirnnIsNoLm, BirnnOfPrefixIsLm, ElmanRemembersBoth

CLAIMS = [ElmanRemembersBoth, BirnnIsNoLm, BirnnOfPrefixIsLm]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_documents_are_judged_by_their_own_recipe_also_when_the_knob_is_turned(claim):
    assert claim().turned().run().right == claim().run().right


def test_elman_with_no_bias_is_wrong_after_all_inputs_that_show_just_one():
    # of length t there are 2 (2^t − 1): each step none or that one, and not always none
    evidence = ElmanRemembersBoth(bias=0.0, length=5).run()
    assert evidence.trials == sum(4**t for t in range(1, 6))
    assert evidence.measures[0].value == sum(2 * (2**t - 1) for t in range(1, 6))
    assert evidence.measures[1].value == 2  # of the four states


@pytest.mark.parametrize("bias", [-2.0, -1 - 2**-40, -1 + 2**-40, -0.5, 1.0])
def test_no_other_bias_does(bias):
    evidence = ElmanRemembersBoth(bias=bias, length=2).run()
    assert evidence.verdict == "refuted"
    assert evidence.measures[3].met  # our network follows the fractions all the same


def test_elman_answers_once_the_second_input_comes():
    seen, state, outputs = (0, 0), recurrent.START, []
    for x in [(1, 0), (0, 0), (1, 0), (0, 1), (0, 0)]:
        seen, state = recurrent._step(seen, state, x)
        outputs.append(recurrent._output(state, Fraction(-1)))
    assert outputs == [0, 0, 0, 1, 1]


def test_a_network_that_forgets_is_found_out(monkeypatch):
    def forgetful(seen, state, x):
        return (seen[0] | x[0], seen[1] | x[1]), (Fraction(x[0]), Fraction(x[1]))

    monkeypatch.setattr(recurrent, "_step", forgetful)
    evidence = ElmanRemembersBoth(length=3).run()
    assert not any(measure.met for measure in evidence.measures)


def test_totals_equal_a_sum_by_hand():
    """One unit, two tokens, two steps: everything written out."""
    claim = BirnnIsNoLm(vocabulary=2, length=2, width=1, seed=5)
    settings = BidirectionalSettings(vocabulary=2, width=1)
    reader = built(settings.build, 5, "network 0")
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
    total = recurrent._total(recurrent._copying(vocabulary), texts)
    assert total == pytest.approx((vocabulary * each) ** length, rel=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_stays_below_its_bound(seed):
    """In float32, where it is large enough to be seen against float64."""
    settings = BidirectionalSettings(vocabulary=3, width=4)
    reader, texts = built(settings.build, seed, "network"), recurrent._texts(3, 4)
    exact = recurrent._total(reader, texts)
    # the bound of float64 is in proportion to its epsilon as long as it is small
    bound = recurrent._rounding(reader, 4, len(texts)) * 2.0**29 * exact
    assert 0 < abs(recurrent._total(reader.float(), texts) - exact) < bound


def test_the_bound_on_rounding_stays_a_number_for_any_weights():
    settings = BidirectionalSettings(vocabulary=3, width=4)
    reader = built(settings.build, 0, "network")
    small = recurrent._rounding(reader, 4, 81)
    reader.network.back.from_hidden.weight.mul_(1e9)
    assert small < 1e-6 < 1 < recurrent._rounding(reader, 4, 81) < 2


@pytest.mark.parametrize("shape", [(2, 1, 1), (4, 3, 7), (5, 2, 16)])
def test_the_claims_hold_for_other_vocabularies_lengths_and_widths(shape):
    vocabulary, length, width = shape
    settings = {"vocabulary": vocabulary, "length": length, "width": width, "models": 2}
    for claim in (BirnnIsNoLm, BirnnOfPrefixIsLm):
        assert claim(**settings).run().verdict == "holds"
        assert claim(**settings).turned().run().verdict == "refuted"


def test_a_prefix_that_is_one_token_too_long_is_found_out(monkeypatch):
    def peeking(model, texts):
        logs = model(texts)[:, 1:].log_softmax(-1)
        return float(logs.gather(2, texts[:, 1:, None]).sum((1, 2)).exp().sum())

    monkeypatch.setattr(recurrent, "_total", peeking)
    evidence = BirnnOfPrefixIsLm().run()
    assert evidence.verdict == "refuted"
    assert not any(evidence.right.values())


def test_the_last_h_of_a_prefix_has_read_one_token_backwards():
    last, mean, whole = (row[2] for row in BirnnOfPrefixIsLm().run().details[0].rows)
    assert last == 0 and mean > 0.01 and whole > 0.01


@pytest.mark.parametrize(
    ("claim", "settings"),
    [
        (ElmanRemembersBoth, {"length": 0}),
        (BirnnIsNoLm, {"vocabulary": 1}),
        (BirnnIsNoLm, {"backward": -0.5}),
        (BirnnOfPrefixIsLm, {"length": 6}),
    ],
)
def test_settings_out_of_range_are_refused(claim, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        claim(**settings)
