"""What a model takes besides its text, and was not given, is said."""

import pytest

pytest.importorskip("transformers")

from attnlab.audit.hf import models as hf
from attnlab.audit.hf.inputs import unseen_inputs


def listed(target: str) -> list[str]:
    return [one.detail for one in unseen_inputs(hf.subject_of(target))]


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("whisper", "`encoder_outputs`"),
        ("causal/git", "`pixel_values`"),
    ],
)
def test_other_inputs_are_named(target: str, names: str) -> None:
    (detail,) = listed(target)
    assert names in detail and "not examined" in detail


# a causal model, one whose cross-attention is not made, an encoder that is given, a picture
@pytest.mark.parametrize("target", ["llama", "causal/bert", "t5", "vit"])
def test_models_that_were_given_all_have_no_such_finding(target: str) -> None:
    assert listed(target) == []
