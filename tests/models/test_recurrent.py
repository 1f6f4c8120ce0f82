"""Recurrent models."""

from itertools import product

import pytest
import torch

from attnlab import registry
from attnlab.models.recurrent import (
    Bidirectional,
    BidirectionalSettings,
    Elman,
    ElmanSettings,
    PrefixBidirectionalSettings,
    Recurrence,
    slide,
)

RECURRENT = ["elman", "birnn", "prefix-birnn"]


def text(length=9):
    return torch.randint(7, (2, length), generator=torch.Generator().manual_seed(0))


def test_slide_is_flat_outside_zero_and_one():
    assert slide(torch.tensor([-2.0, 0.0, 0.3, 1.0, 5.0])).tolist() == pytest.approx(
        [0, 0, 0.3, 1, 1]
    )


def test_the_course_network_remembers_both_inputs():
    """W_hh = W_hx = I, b_h = 0, W_yh = [1 1], b_y = -1: 1 exactly when both have been seen."""
    network = Elman(2, 2, 1, "slide")
    with torch.no_grad():
        network.recurrence.from_hidden.weight.copy_(torch.eye(2))
        network.recurrence.from_input.weight.copy_(torch.eye(2))
        network.recurrence.from_input.bias.zero_()
        network.output.weight.fill_(1)
        network.output.bias.fill_(-1)
        pairs = list(product((0.0, 1.0), repeat=2))
        inputs = torch.tensor(list(product(pairs, repeat=4)))
        outputs = network(inputs)[..., 0]
    both = inputs.cummax(1).values.prod(-1)
    assert torch.equal(outputs, both)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_recurrence_is_that_of_torch(activation):
    ours = Recurrence(3, 5, activation).double()
    theirs = torch.nn.RNN(3, 5, nonlinearity=activation, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.from_input.weight)
        theirs.bias_ih_l0.copy_(ours.from_input.bias)
        theirs.weight_hh_l0.copy_(ours.from_hidden.weight)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(2, 8, 3, dtype=torch.float64)
    states, last = ours(x)
    want, _ = theirs(x)
    torch.testing.assert_close(states, want)
    torch.testing.assert_close(last, want[:, -1])


def test_elman_decodes_as_it_reads():
    model = ElmanSettings(vocabulary=7, width=6).build().double()
    cache = model.new_cache()
    assert cache.bytes == 0
    for tokens in (text(), text().flip(1)):
        steps = [model(part, cache=cache) for part in tokens.split([1, 3, 5], dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens))
        assert cache.length == 9 and cache.bytes == 2 * 6 * 8
        cache.reset()
        assert cache.length == cache.bytes == 0


def test_elman_reads_a_padded_row_as_if_alone():
    model, tokens = ElmanSettings(vocabulary=7, width=6).build().double(), text()
    padded = torch.cat((torch.full((2, 4), 3), tokens), dim=1)
    hidden = torch.arange(13).expand(2, -1) < 4
    want = model(tokens)
    torch.testing.assert_close(model(padded, key_padding=hidden)[:, 4:], want)
    cache, steps = model.new_cache(), []
    for part, mask in zip(padded.split(3, dim=1), hidden.split(3, dim=1), strict=True):
        steps.append(model(part, key_padding=mask, cache=cache))
    torch.testing.assert_close(torch.cat(steps, dim=1)[:, 4:], want)
    # padding at the end of one row, as when it has ended before the others
    hidden = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
    assert torch.equal(model(tokens, key_padding=hidden)[1, 4:], want[1, 4].expand(5, -1))


def changed_outputs(model, tokens, place):
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % 7
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    return difference.nonzero().flatten().tolist()


def test_only_the_bidirectional_network_sees_the_future():
    tokens = text()
    for settings in (
        ElmanSettings(vocabulary=7, width=6),
        PrefixBidirectionalSettings(vocabulary=7, width=6),
        PrefixBidirectionalSettings(vocabulary=7, width=6, readout="last"),
    ):
        torch.manual_seed(0)
        assert min(changed_outputs(settings.build().double(), tokens, 5)) == 5
    torch.manual_seed(0)
    leaky = BidirectionalSettings(vocabulary=7, width=6).build().double()
    assert min(changed_outputs(leaky, tokens, 5)) == 0 and not leaky.causal


@pytest.mark.parametrize("readout", ["mean", "last"])
def test_prefixes_side_by_side_are_prefixes_one_by_one(readout):
    settings = PrefixBidirectionalSettings(vocabulary=7, width=6, readout=readout)
    model, tokens = settings.build().double(), text()
    got = model(tokens)
    for end in range(1, 10):
        states = model.network(model.embed(tokens[:, :end]))
        state = states.mean(1) if readout == "mean" else states[:, -1]
        torch.testing.assert_close(got[:, end - 1], model.head(state))


def test_bidirectional_joins_both_directions():
    network = Bidirectional(3, 4).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    ahead = network.ahead(x)[0]
    back = network.back(x.flip(1))[0].flip(1)
    want = torch.tanh(network.from_ahead(ahead) + network.from_back(back))
    torch.testing.assert_close(network(x), want)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_parameter_learns(name):
    model = registry.load("model", name)(vocabulary=7, width=6).build()
    model(text()).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 0}, "width is 0"),
        ({"vocabulary": 10**12}, "vocabulary is"),
        ({"activation": "step"}, "choose from tanh"),
    ],
)
def test_nonsense_is_refused(name, wrong, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        registry.load("model", name)(**wrong)
