"""Every registered model: shapes, causality, gradients, decoding, and settings that are saved."""

import pytest
import torch

from attnlab import config, registry
from attnlab.training.recipe import Recipe

NAMES = [option.name for option in registry.options("model")]
SIZE, LENGTH = 13, 11


def settings_of(name):
    return config.override(registry.load("model", name)(), [f"vocabulary={SIZE}", "width=12"])


def build(name, seed=0):
    torch.manual_seed(seed)
    return settings_of(name).build().double().eval()


def text(seed=0):
    return torch.randint(SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_it_gives_logits_for_every_token(name):
    model = build(name)
    for length in (1, LENGTH):
        logits = model(text()[:, :length])
        assert logits.shape == (2, length, SIZE) and logits.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_it_is_causal_or_says_that_it_is_not(name):
    model, place = build(name), 6
    changed = text()
    changed[:, place:] = (changed[:, place:] + 1) % SIZE
    moved = (model(text()) - model(changed)).abs().amax((0, 2))
    assert (moved[place:] > 0).all()
    assert (moved[:place] == 0).all() == getattr(model, "causal", True)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name):
    model = build(name).train()
    torch.nn.functional.cross_entropy(
        model(text())[:, :-1].flatten(0, 1), text()[:, 1:].flatten()
    ).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_decoding_equals_the_whole_if_it_has_a_cache(name):
    model = build(name)
    if not hasattr(model, "new_cache"):
        with pytest.raises(TypeError):  # then no cache may be given and ignored
            model(text(), cache=None)
        return
    cache = model.new_cache()
    for seed in (0, 1):
        parts = [model(part, cache=cache) for part in text(seed).split([1, 3, 7], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(text(seed)))
        cache.reset()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_saved_settings_and_weights_are_the_same_model(name):
    recipe = Recipe(model=settings_of(name))
    again = config.from_dict(Recipe, config.to_dict(recipe))
    assert again == recipe
    model, other = build(name), again.model.build().double().eval()
    assert not torch.equal(model(text()), other(text()))  # other weights
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(text()), other(text()))
