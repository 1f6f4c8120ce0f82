"""Attention by itself: a module, and a function of q, k and v, which has no weights to move."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.doctor.case import Case
from attnlab.doctor.diagnosis import diagnose
from attnlab.doctor.pairs.separate import rotate
from attnlab.doctor.pairs.style import Style
from attnlab.doctor.patient import made


class Attention(nn.Module):
    def __init__(self, style, width=32, heads=4):
        super().__init__()
        self.style, self.heads, self.width = style, heads, width
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            one(x).view(b, t, self.heads, -1) for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotate(one.transpose(1, 2), self.style, 0).transpose(1, 2) for one in (q, k))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * (self.style.scale or 8**-0.5)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.out_proj(y.flatten(2))


def function(**changes):
    style = Style(**changes)

    def attend(q, k, v):
        q, k = rotate(q, style, 0), rotate(k, style, 0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=style.scale)

    return attend


CHANGES = [
    ({"layout": "interleaved"}, "rotary-layout"),
    ({"backward": True}, "rotary-direction"),
    ({"scale": 0.1}, "score-scale"),
    ({"base": 50.0}, "rotary-base"),
]


@pytest.mark.parametrize(("change", "cause"), CHANGES)
def test_a_module_of_vectors_written_with_einsum(change, cause):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        pair = [made(Attention(style), "attention") for style in (Style(), Style(**change))]
    found = diagnose(Case(*pair))
    assert [one.cause for one in found.causes] == [cause] and len(found.sets) == 1


@pytest.mark.parametrize(("change", "cause"), CHANGES)
def test_a_function_without_weights_has_a_setting_to_change(change, cause):
    found = diagnose(Case(made(function(), "a"), made(function(**change), "b")))
    assert [one.cause for one in found.causes] == [cause] and found.causes[0].setting
    assert not found.conversion and found.error_after < 1e-12
