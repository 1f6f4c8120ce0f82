"""The peer of the training benchmarks is a language model, and its step trains it."""

import torch

from attnlab.bench.plain_gpt import Peer, PlainGpt, PlainTraining
from attnlab.data.batches import Batch

TINY = Peer(width=16, depth=1, heads=2, context=8, batch=2, steps=30, rate=1e-2, dropout=0.0)


def test_the_peer_cannot_see_the_future():
    torch.manual_seed(0)
    model = PlainGpt(TINY, 11).eval()
    tokens = torch.randint(11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:])


def test_its_steps_learn_a_text_by_heart():
    training = PlainTraining(TINY, 11, torch.device("cpu"))
    tokens = torch.arange(9).expand(2, 9)
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    losses = [float(training.step(100 + number, batch)) for number in range(30)]
    assert abs(losses[0] - torch.tensor(11.0).log()) < 0.5 and losses[-1] < losses[0]
