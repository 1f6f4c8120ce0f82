"""A training whose model sees the future is stopped, and one that does not is left as it is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit.plugins.callback import FutureSeen, StopOnLeak, trainer_callback


class Model(nn.Module):
    """Tokens [b, t] to scores [b, t, v], with dropout, a buffer that counts and a frozen part."""

    def __init__(self, leak=False, vocabulary=11, width=16):
        super().__init__()
        self.leak, self.calls = leak, 0
        self.embed = nn.Embedding(vocabulary, width)
        self.project, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocabulary)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(width)
        self.register_buffer("seen", torch.zeros(1))
        self.embed.requires_grad_(False)

    def forward(self, input_ids):
        self.seen += 1
        x = self.drop(self.embed(input_ids))
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        q, k, v = self.project(x).chunk(3, dim=-1)
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        allowed = apart >= (-2 if self.leak else 0)
        weights = (q @ k.transpose(-1, -2)).masked_fill(~allowed, -torch.inf).softmax(-1)
        return self.head(weights @ v)


def trained(model, steps, stop=None):
    """The parameters after some steps; the model and the numbers drawn are those of the seed."""
    torch.manual_seed(3)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        tokens = torch.randint(11, (4, 9))
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        if stop is not None:
            stop(model, step)
        optimiser.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_leak_is_named_by_its_pair(dtype):
    model = Model(leak=True).to(dtype)
    with pytest.raises(
        FutureSeen, match=r"Model sees the future: output 0 moves by .* input 1 changes"
    ):
        StopOnLeak()(model)
    StopOnLeak()(Model().to(dtype))


def test_a_training_ends_with_the_same_bits_with_it_and_without():
    torch.manual_seed(0)
    model = Model()
    plain = trained(copy.deepcopy(model), 4)
    watched = trained(copy.deepcopy(model), 4, StopOnLeak(every=1))
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


@pytest.mark.parametrize("leak", [False, True])
def test_it_leaves_modes_gradients_and_generators_alone(leak):
    model = Model(leak=leak)
    model.norm.eval()  # a part may be in evaluation mode while the rest trains
    model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    slopes = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    state = torch.get_rng_state()
    try:
        StopOnLeak()(model)
    except FutureSeen:
        assert leak
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model.drop.training and not model.norm.training
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert model.head.weight.dtype is torch.float32 and model.head.weight.requires_grad
    for one, slope in zip(model.parameters(), slopes, strict=True):
        assert (one.grad is None) == (slope is None)
        assert slope is None or torch.equal(one.grad, slope)
    assert not model.embed.weight.requires_grad


def test_it_looks_once_or_every_so_many_steps():
    looks = []

    class Counted(StopOnLeak):
        def look(self, model, step=0):
            looks.append(step)

    model, once, often = nn.Linear(2, 2), Counted(), Counted(every=3)
    for step in range(7):
        once(model, step)
    assert looks == [0]
    looks.clear()
    for step in range(7):
        often(model, step)
    assert looks == [0, 3, 6]


def test_a_wrapped_model_is_looked_into():
    with pytest.raises(FutureSeen, match="0, Model sees the future"):
        StopOnLeak()(nn.DataParallel(Model(leak=True)))


def test_vectors_are_as_good_as_tokens():
    mean = nn.Sequential(nn.Linear(8, 8))
    StopOnLeak()(mean)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x) + x.mean(1, keepdim=True)

    with pytest.raises(FutureSeen, match="output 0 moves"):
        StopOnLeak()(Mean())


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="every is 0"):
        StopOnLeak(every=0)
    with pytest.raises(ValueError, match="2 positions or more"):
        StopOnLeak(lengths=(1,))


def test_transformers_call_it_through_their_trainer():
    transformers = pytest.importorskip("transformers")
    callback = trainer_callback(every=2)
    assert isinstance(callback, transformers.TrainerCallback)

    class State:
        global_step = 0

    callback.on_train_begin(None, State(), None, model=Model())
    State.global_step = 1
    callback.on_step_end(None, State(), None, model=Model(leak=True))  # not due
    State.global_step = 2
    with pytest.raises(FutureSeen, match="at step 2"):
        callback.on_step_end(None, State(), None, model=Model(leak=True))


def test_a_causal_language_model_of_transformers_passes():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    StopOnLeak()(transformers.LlamaForCausalLM(config).train())


def test_a_model_for_short_texts_is_asked_within_its_table():
    class Short(Model):
        def forward(self, input_ids):
            assert input_ids.shape[1] <= 10
            return super().forward(input_ids)

    StopOnLeak()(Short())
    late = Short(leak=True)
    with pytest.raises(FutureSeen, match="sees the future"):
        StopOnLeak(lengths=(33,))(late)
