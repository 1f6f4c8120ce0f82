"""What is given for one call of a model: prefixes, documents, and values of the first layer."""

import pytest
import torch

from attnlab import config
from attnlab.attention.heads import AttentionOptions
from attnlab.attention.own import OwnLayer
from attnlab.attention.rotary_scaling import LongRope
from attnlab.kernels import Segments
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=16, width=16, depth=3)


def build(*words):
    torch.manual_seed(0)
    return config.override(SMALL, ["attention.heads=2", *words]).build().double().eval()


TOKENS = torch.arange(24).view(2, 12) % 13


@pytest.mark.parametrize("base", ["10000", "10000,none", "none,500", "10000,500"])
@torch.no_grad()
def test_values_of_the_first_layer_reach_the_others_whatever_their_positions(base):
    model = build("value_residual=first", f"positions.base={base}")
    before = model(TOKENS)
    model.blocks[2].attention.residual.part.fill_(0.9)
    assert (model(TOKENS) - before).abs().max() > 1e-6


@torch.no_grad()
def test_a_prefix_is_read_in_one_piece():
    model, wanted = build(), build()(TOKENS, prefix=6)
    cache = model.new_cache()
    parts = [
        model(TOKENS[:, :7], prefix=6, cache=cache),
        model(TOKENS[:, 7:], prefix=6, cache=cache),
    ]
    torch.testing.assert_close(torch.cat(parts, 1), wanted)
    cache.reset()
    model(TOKENS[:, :4], cache=cache)
    with pytest.raises(ValueError, match="prefix has 6 and the cache holds 4 tokens"):
        model(TOKENS[:, 4:], prefix=6, cache=cache)


@torch.no_grad()
def test_documents_are_checked_and_only_their_own_length_counts():
    model = build("positions=learned")
    numbers = torch.tensor([[0] * 12 + [1] * 12])
    row = torch.cat((TOKENS[:1], TOKENS[1:]), 1)  # longer than the context, its documents are not
    packed = model(row, segments=numbers)
    torch.testing.assert_close(packed, torch.cat((model(TOKENS[:1]), model(TOKENS[1:])), 1))
    with pytest.raises(ValueError, match="24 tokens are more than the 16 learned positions"):
        model(row)
    with pytest.raises(ValueError, match="20 tokens are more than the 16 learned positions"):
        model(row, segments=(torch.arange(24) >= 20).long()[None])


@pytest.mark.parametrize(
    "given",
    [{"prefix": torch.tensor([2])}, {"segments": Segments(*2 * [torch.zeros(1, 4).long()])}],
)
def test_code_of_a_persons_own_is_told_of_neither(given):
    layer = OwnLayer(torch.nn.Identity(), "mine.py:Mine")
    with pytest.raises(ValueError, match=r"mine.py:Mine is not given (prefix|segments)"):
        layer(torch.zeros(1, 4, 8), options=AttentionOptions(**given))


def test_long_factors_need_the_context_beyond_which_they_count():
    with pytest.raises(ValueError, match="original is None; long factors count beyond it"):
        LongRope(long=(4.0,))


@torch.no_grad()
def test_a_prefix_behind_left_padding_is_that_of_the_text_alone():
    model = build()
    padded = torch.cat((torch.zeros(2, 3).long(), TOKENS), 1)
    positions = (torch.arange(15) - 3)[None]
    options = {"positions": positions.clamp(min=0), "key_padding": (positions < 0).expand(2, -1)}
    found = model(padded, prefix=5, **options)[:, 3:]
    torch.testing.assert_close(found, model(TOKENS, prefix=5))
