"""Training code: losses are of the next token, gradients in parts are equal, spans are put back."""

import pytest
import torch.nn.functional as F
from torch import nn

from attnlab.audit.bugs import training as mutants
from attnlab.audit.bugs.cases import cases
from attnlab.audit.contract import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.training import LossFunction, Training
from attnlab.audit.subject.adapters import subject_for


def examined(code):
    return Training().examine(Probe(subject_for(code, {}, "code"), Contract(causal=True)))


@pytest.mark.parametrize("case", cases("training")["training"], ids=lambda case: case.name)
def test_training_bugs_fail_and_their_twins_pass(case):
    for wrong, verdict in ((True, "fail"), (False, "pass")):
        assert Training().examine(Probe(case.subject(wrong), case.contract)).verdict == verdict


def test_losses_as_functions_may_shift_once_or_leave_it_to_the_caller():
    def plain(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

    def thrice(logits, labels):
        return mutants.next_token_loss(logits[:, :-1], labels[:, 1:])

    for loss, verdict in ((plain, "pass"), (mutants.next_token_loss, "pass"), (thrice, "fail")):
        found = Training().examine(Probe(LossFunction("loss", loss), Contract()))
        assert found.verdict == verdict, found.detail
    smoothed = Training().examine(
        Probe(LossFunction("loss", lambda logits, labels: logits.square().mean()), Contract())
    )
    assert smoothed.verdict == "cannot tell"


class PaddedTrainer(mutants.SmallModel):
    def __init__(self, ignoring):
        super().__init__()
        self.ignoring = ignoring

    def forward(self, tokens):
        return self.logits(tokens)

    def loss(self, tokens, padding=None):
        labels = tokens
        if padding is not None and self.ignoring:
            labels = tokens.masked_fill(padding, -100)
        return mutants.next_token_loss(self(tokens), labels)


def test_a_loss_must_not_count_padding():
    assert examined(PaddedTrainer(True)).verdict == "pass"
    found = examined(PaddedTrainer(False))
    assert found.verdict == "fail" and "padding" in found.detail


def test_lost_tokens_are_noticed():
    class Losing(mutants.SpanCorrupting):
        def corrupt(self, tokens, seed):
            inputs, targets = super().corrupt(tokens, seed)
            return inputs, targets[:-1]

    found = examined(Losing(False))
    assert found.verdict == "fail" and "lost" in found.detail


def test_a_loss_that_is_a_layer_is_not_a_method():
    class Plain(mutants.SmallModel):
        def __init__(self):
            super().__init__()
            self.loss = nn.CrossEntropyLoss()

        def forward(self, tokens):
            return self.logits(tokens)

    assert examined(Plain()).verdict == "not applicable"


def test_a_loss_that_fits_every_shift_shows_none():
    """All tokens are equally likely, so the right loss is that of the wrong labels too."""

    class Even(mutants.SmallModel):
        def forward(self, tokens):
            return 0 * self.logits(tokens)

        def loss(self, tokens):
            return mutants.next_token_loss(self(tokens), tokens)

    found = examined(Even())
    assert found.verdict == "cannot tell" and "equally likely" in found.detail, found


@pytest.mark.parametrize(
    ("padding", "ahead", "verdict", "sentence"),
    [
        (None, 1, "cannot tell", "token 0 does not count in the loss"),
        (0, 1, "pass", "token 0, its padding, does not count"),
        (None, 2, "fail", "labels are shifted twice"),
    ],
)
def test_a_token_that_does_not_count_is_named(padding, ahead, verdict, sentence):
    class Ignoring(nn.Module):
        def __init__(self):
            super().__init__()
            self.vocab_size = 331
            self.table = nn.Embedding(331, 8, padding_idx=padding)
            self.head = nn.Linear(8, 331)

        def forward(self, tokens, labels=None):
            logits = self.head(self.table(tokens).cumsum(1))
            if labels is None:
                return logits
            rows, wanted = logits[:, :-ahead].flatten(0, 1), labels[:, ahead:].flatten()
            return logits, F.cross_entropy(rows, wanted, ignore_index=0)

    finding = examined(Ignoring())
    assert finding.verdict == verdict and sentence in finding.detail, finding.detail
