"""YaRN's rates: by hand, against the library transformers, and ramps that are wrong."""

import numpy as np
import pytest

from attnlab.theory import yarn
from attnlab.theory.yarn import BASES, WIDTHS, YarnKeepsFastPairs


def test_pairs_at_the_ends_and_half_way_by_hand(monkeypatch):
    """Of 3 turns with α = 2 and β = 4 half is kept: (1 + 1/4)/2 of the rate."""
    claim = YarnKeepsFastPairs(factor=4.0, slow=2.0, fast=4.0)
    turns = np.array([8.0, 4.0, 3.0, 2.0, 0.5])
    monkeypatch.setattr(yarn, "frequencies", lambda pairs, base: turns * 2 * np.pi / claim.context)
    rates = yarn.by_turns(claim, 10.0, 10) / yarn.frequencies(5, 10.0)
    assert rates == pytest.approx([1, 1, 0.625, 0.25, 0.25], abs=1e-15)


def test_by_number_is_what_transformers_computes():
    modeling_rope_utils = pytest.importorskip(
        "transformers.modeling_rope_utils", reason="transformers is not installed"
    )
    from transformers import LlamaConfig

    claim = YarnKeepsFastPairs()
    for base in BASES:
        for width in WIDTHS:
            parameters = {
                "rope_type": "yarn",
                "rope_theta": base,
                "factor": claim.factor,
                "original_max_position_embeddings": claim.context,
            }
            config = LlamaConfig(
                hidden_size=2 * width,
                num_attention_heads=2,
                max_position_embeddings=int(claim.factor * claim.context),
                rope_parameters=parameters,
            )
            theirs, _ = modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
            # float32: a few roundings of each rate
            assert yarn.by_number(claim, base, width) == pytest.approx(theirs.numpy(), rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 1.5},
        {"factor": 64.0, "context": 256},
        {"context": 32768, "fast": 40.0, "slow": 0.25},
        {"context": 256, "fast": 40.0, "slow": 4.0},
        {"fast": 2.0},
    ],
)
def test_it_holds_at_the_ends_of_the_settings(changes):
    assert YarnKeepsFastPairs(**changes).run().verdict == "holds"
    assert YarnKeepsFastPairs(**changes).with_knob().run().verdict == "refuted"


def test_a_larger_base_changes_pairs_of_both_kinds():
    fast, slow, between, order = YarnKeepsFastPairs(rates="a larger base").run().measures
    assert not fast.met and not slow.met and between.met and order.met


@pytest.mark.parametrize("name", ["by turns", "by number"])
def test_a_ramp_that_is_turned_round_is_refuted(monkeypatch, name):
    right = yarn.RESCALED[name]

    def turned(claim, base, width):
        rates = yarn.frequencies(width // 2, base)
        return rates * (1 + 1 / claim.factor) - right(claim, base, width)

    monkeypatch.setitem(yarn.RESCALED, name, turned)
    assert [one.met for one in YarnKeepsFastPairs().run().measures][:2] == [False, False]


def test_settings_that_make_no_sense_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"fast is 3\.0; it must be above slow = 4\.0"):
        YarnKeepsFastPairs(fast=3.0, slow=4.0)
