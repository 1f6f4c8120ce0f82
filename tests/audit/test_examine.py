"""The audit as a whole: our own attentions are certified, and contracts are kept or not."""

import json

import pytest
import torch
import torch.nn.functional as F

from attnlab import config, registry
from attnlab.attention.heads import HeadedAttention
from attnlab.audit import Subject, assert_contract, audit
from attnlab.models.transformer import TransformerSettings

MISTAKES = ("rotary-growing", "rotary-by-head")


def failed(certificate):
    return [(one.name, one.detail) for one in certificate.findings if one.verdict == "fail"]


@pytest.mark.parametrize("score", [option.name for option in registry.options("score")])
@pytest.mark.parametrize("heads", [option.name for option in registry.options("attention")])
@pytest.mark.parametrize("window", [None, 5])
def test_all_our_attentions_are_certified(heads, score, window):
    torch.manual_seed(0)
    settings = registry.load("attention", heads)(heads=4)
    made = registry.load("score", score)().build(4, 8)
    module = HeadedAttention(settings, made, width=32, window=window)
    certificate = audit(module, causal=True, window=window)
    assert certificate.verdict == "pass", failed(certificate)


@pytest.mark.parametrize(
    "positions", [one.name for one in registry.options("positions") if one.name not in MISTAKES]
)
def test_all_our_positions_are_certified_in_a_transformer_with_a_cache(positions):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=128)
    model = config.override(settings, [f"positions={positions}", "window=6,none"]).build()
    certificate = audit(model, causal=True, cache=True)
    assert certificate.verdict == "pass", failed(certificate)


def test_a_contract_that_is_not_kept_is_an_assertion_error_with_every_reason():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    with pytest.raises(AssertionError, match=r"does not keep its contract:\n  causality: output 0"):
        assert_contract(attend, causal=True)
    assert assert_contract(attend).verdict == "pass"


def test_a_certificate_is_plain_json_with_the_influence_of_each_input():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    certificate = audit(attend, name="mine", causal=True)
    plain = certificate.plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["target"] == "mine" and plain["verdict"] == "pass"
    matrix = torch.tensor(certificate.influence)
    assert (matrix.triu(1) == 0).all() and (matrix.tril() > 0).sum() == 23 * 24 / 2


def test_an_unknown_declaration_is_refused():
    with pytest.raises(ValueError, match="casual: no such setting; did you mean 'causal'"):
        audit(lambda q, k, v: v, casual=True)


def test_code_that_breaks_down_is_reported_not_raised():
    def attend(q, k, v):
        if q.shape[2] == 23:
            raise RuntimeError("23 is too many")
        return v

    certificate = audit(attend, causal=True)
    assert any("23 is too many" in one.detail for one in certificate.findings)
    assert certificate.influence == ()


def test_a_subject_of_ones_own():
    class Shifted(Subject):
        """Every output is the input before it."""

        name = "shifted"

        def draw(self, batch, length, seed):
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)

        def run(self, x, *, padding=None, positions=None):
            return F.pad(x, (0, 0, 1, 0))[:, :-1]

    certificate = audit(Shifted(), causal=True)
    assert certificate.verdict == "pass" and certificate.target == "shifted"


def test_a_persons_module_stays_as_it_was():
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    audit(module, causal=False)
    assert module.training
    for name, value in module.state_dict().items():
        assert value.dtype is torch.float32 and torch.equal(value, before[name]), name
