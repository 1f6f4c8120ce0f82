"""Layouts: axes in another order are called so, and nothing is claimed before that is declared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import assert_contract, audit


class TimeFirst(nn.Module):
    def __init__(self, embed_dim=16, causal=True):
        super().__init__()
        self.embed_dim, self.causal = embed_dim, causal
        self.inner = nn.MultiheadAttention(embed_dim, 2)

    def forward(self, x):
        t = len(x)
        mask = torch.full((t, t), -torch.inf, dtype=x.dtype).triu(1) if self.causal else None
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


def by_token(q, k, v):
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def verdicts(certificate):
    return {one.name: one.verdict for one in certificate.findings}


def test_rows_that_mix_alone_leave_everything_open_and_say_what_to_declare():
    certificate = audit(TimeFirst(), causal=True)
    assert set(verdicts(certificate).values()) == {"cannot tell"}
    assert certificate.verdict == "incomplete" and "layout=tbc" in certificate.reason
    with pytest.raises(AssertionError, match="declare layout=tbc"):
        assert_contract(TimeFirst(), causal=True)


def test_declared_time_first_it_is_certified():
    certificate = audit(TimeFirst(), causal=True, layout="tbc")
    assert certificate.verdict == "pass" and verdicts(certificate)["causality"] == "pass"


def test_declared_time_first_a_leak_is_found():
    certificate = audit(TimeFirst(causal=False), causal=True, layout="tbc")
    assert verdicts(certificate)["causality"] == "fail"


def test_declared_batch_first_a_forgotten_batch_first_fails():
    assert verdicts(audit(TimeFirst(causal=False), layout="btc"))["batch"] == "fail"


def test_rows_that_see_later_rows_are_wrong_in_causal_code_of_any_layout():
    assert audit(TimeFirst(causal=False), causal=True).verdict == "fail"


def test_a_module_that_says_it_is_time_first_is_called_so():
    certificate = audit(nn.MultiheadAttention(16, 2))
    assert certificate.verdict == "pass", verdicts(certificate)


def test_functions_of_tokens_and_then_heads():
    open_ = audit(by_token, causal=True)
    assert open_.verdict == "incomplete" and "layout=bthd" in open_.reason
    certificate = audit(by_token, causal=True, layout="bthd")
    assert certificate.verdict == "pass", verdicts(certificate)
    assert verdicts(audit(by_token, causal=True, layout="bhtd"))["heads"] == "fail"


def test_a_layout_of_something_else_is_refused():
    with pytest.raises(ValueError, match="takes bhtd or bthd"):
        audit(by_token, layout="tbc")
    with pytest.raises(ValueError, match="takes btc or tbc"):
        audit(TimeFirst(), layout="bthd")


def test_code_that_takes_whole_blocks_only_is_given_them():
    class Blocks(nn.Module):
        def __init__(self, dim=16):
            super().__init__()
            self.dim = dim
            self.inner = nn.Linear(dim, 3 * dim)

        def forward(self, x):
            if x.shape[1] % 16:
                raise ValueError("a multiple of 16")
            q, k, v = self.inner(x).chunk(3, dim=-1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    certificate = audit(Blocks(), causal=True)
    assert certificate.verdict == "pass" and verdicts(certificate)["causality"] == "pass"
