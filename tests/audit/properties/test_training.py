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
