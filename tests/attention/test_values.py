"""Values mixed with those of the first layer."""

import pytest
import torch

from attnlab import config
from attnlab.kernels import attention, rotate, rotation
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=48, width=24, depth=3)


def build(*words):
    torch.manual_seed(0)
    return config.override(SMALL, words).build().double().eval()


@torch.no_grad()
def test_values_are_those_of_the_layer_and_of_the_first_in_the_learned_parts():
    """Layer by layer, by the definition of attention."""
    model = build("value_residual=first", "attention=grouped")
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    turned, x = rotation(torch.arange(9)[None], 3, dtype=torch.float64), model.embed(tokens)
    for number, block in enumerate(model.blocks):
        module = block.attention
        q, k, v = module._split(module.project(block.attention_norm(x)))
        if number == 0:
            first = v
        else:
            module.residual.part.fill_(0.3 * number)
            v = (1 - 0.3 * number) * v + 0.3 * number * first
        out = attention(rotate(q, turned), rotate(k, turned), v, path="reference")
        x = x + module.join(out)
        x = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)))


def test_it_adds_one_number_a_layer_after_the_first_and_starts_at_a_half():
    mixed, plain = build("value_residual=first"), build()
    added = {n: p for n, p in mixed.named_parameters() if n not in plain.state_dict()}
    assert list(added) == [f"blocks.{n}.attention.residual.part" for n in (1, 2)]
    assert all(part.tolist() == [0.5] for part in added.values())
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, mixed.state_dict()[name])


@torch.no_grad()
def test_without_a_part_of_the_first_layer_it_is_the_plain_model():
    mixed, plain = build("value_residual=first"), build()
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(mixed(tokens), plain(tokens))
    for block in mixed.blocks[1:]:
        block.attention.residual.part.zero_()
    torch.testing.assert_close(mixed(tokens), plain(tokens))


def test_a_later_layer_alone_says_that_the_first_has_not_run():
    layer = build("value_residual=first").blocks[1].attention
    with pytest.raises(ValueError, match="values of the model's first layer, which has not run"):
        layer(torch.randn(2, 9, 24, dtype=torch.float64))


@torch.no_grad()
def test_values_take_from_the_token_in_the_layers_that_say_so():
    """Layer by layer, by the definition of attention."""
    model = build("value_embedding=false,true", "attention=grouped")
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    turned, x = rotation(torch.arange(9)[None], 3, dtype=torch.float64), model.embed(tokens)
    for number, block in enumerate(model.blocks):
        module = block.attention
        q, k, v = module._split(module.project(block.attention_norm(x)))
        if number == 1:
            module.embedding.parts.copy_(torch.tensor([0.7, -0.4]))
            table = module.embedding.table.weight  # head after head
            v = 0.7 * v - 0.4 * table[tokens].view(2, 9, *v.shape[1::2]).transpose(1, 2)
        else:
            assert module.embedding is None
        out = attention(rotate(q, turned), rotate(k, turned), v, path="reference")
        x = x + module.join(out)
        x = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)))


def test_a_table_is_as_wide_as_the_values_of_its_layer():
    mixed, plain = build("value_embedding=true", "attention=grouped"), build("attention=grouped")
    added = {n: p for n, p in mixed.named_parameters() if n not in plain.state_dict()}
    sizes = {n.split("attention.")[1]: tuple(p.shape) for n, p in added.items()}
    assert sizes == {"embedding.parts": (2,), "embedding.table.weight": (13, 2 * 6)}
    assert len(added) == 2 * 3
    assert all(p.tolist() == [0.5, 0.5] for n, p in added.items() if n.endswith("parts"))


def test_a_layer_alone_says_that_it_needs_the_tokens():
    layer = build("value_embedding=true").blocks[0].attention
    with pytest.raises(ValueError, match="needs the tokens, and a layer alone is given vectors"):
        layer(torch.randn(2, 9, 24, dtype=torch.float64))
