"""Evaluation: the mean surprise over a text, and answers to questions."""

import copy
import math

import pytest
import torch

from attnlab.data.batches import IGNORE, Batch
from attnlab.data.corpora import Question
from attnlab.data.tokens import CharacterTokenizer
from attnlab.evaluate import Answer, Evaluation, accuracy, answer_questions, validation_loss
from attnlab.generate import Sampling, generate
from attnlab.kernels import hardware
from attnlab.models.transformer import TransformerSettings

TOKENIZER = CharacterTokenizer(list(" ?abcdefghijklmnopqrstuvwxyz"), special=True)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """For products this small a second thread is only waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(dtype=torch.float32, **options):
    torch.manual_seed(0)
    settings = TransformerSettings(
        vocabulary=TOKENIZER.size, context=64, width=16, depth=2, tied=False, **options
    )
    model = settings.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.to(dtype)


def batches(sizes=((3, 7), (2, 5), (1, 9)), hidden=0.3):
    generator = torch.Generator().manual_seed(0)
    for b, t in sizes:
        text = torch.randint(TOKENIZER.size, (b, t + 1), generator=generator)
        targets = text[:, 1:].clone()
        targets[torch.rand(b, t, generator=generator) < hidden] = IGNORE
        yield Batch(tokens=text[:, :-1], targets=targets)


@torch.no_grad()
def by_hand(model):
    """The definition, token by token."""
    losses = []
    for batch in batches():
        logs = model.eval()(batch.tokens).double().log_softmax(-1)
        for row, target in enumerate(batch.targets):
            places = (target != IGNORE).nonzero().flatten().tolist()
            losses += [-logs[row, time, target[time]].item() for time in places]
    return sum(losses) / len(losses), len(losses)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_the_loss_is_the_mean_over_the_targets_of_all_batches(dtype, tolerance):
    """Of targets, not of batches: here they differ in size. float32 logits round at 1e-7."""
    model = build(dtype)
    want, count = by_hand(model)
    got = validation_loss(model, batches())
    assert got.tokens == count
    assert got.loss == pytest.approx(want, rel=tolerance)
    assert validation_loss(model, batches(), device="cpu") == got


def test_perplexity_and_bits():
    even = Evaluation(loss=math.log(8), tokens=5, exact=0.0)
    assert even.perplexity == pytest.approx(8) and even.bits == pytest.approx(3)
    assert Evaluation(loss=1e4, tokens=1, exact=0.0).perplexity == math.inf
    assert math.isnan(Evaluation(loss=math.nan, tokens=1, exact=0.0).bits)


def test_a_row_is_exact_when_it_would_be_written_so_token_by_token():
    """Against generation: half of the rows want what the model writes, half something else."""
    model, prompt = build(torch.float64), [1, 2, 3]
    written = generate(model, [prompt], tokens=4, sampling=Sampling(temperature=0))[0]
    rows, targets = [], []
    for row in range(6):
        wanted = list(written)
        if row % 2:
            wanted[row // 2] = (wanted[row // 2] + 1) % model.settings.vocabulary
        rows.append([*prompt, *wanted[:-1]])
        targets.append([IGNORE, IGNORE, *wanted])
    given = Batch(torch.tensor(rows), torch.tensor(targets))
    assert validation_loss(model, [given]).exact == 0.5


def test_rows_add_up_to_the_whole():
    model = build()
    got = validation_loss(model, batches())
    rows = [row for batch in batches() for row in batch.targets]
    assert list(got.counts) == [int((row != IGNORE).sum()) for row in rows]
    assert sum(got.counts) == got.tokens and len(got.sums) == len(rows)
    # float64 sums, added in another order
    assert sum(got.sums) / got.tokens == pytest.approx(got.loss, rel=1e-12)
    (first,) = [batch for number, batch in enumerate(batches()) if number == 0]
    one = Batch(first.tokens[:1], first.targets[:1])
    # float32 logits of a batch of another size
    assert got.sums[0] == pytest.approx(validation_loss(model, [one]).sums[0], rel=1e-5)


def test_a_mean_in_float64_does_not_drift():
    """5,000 batches of one loss have that loss; a float32 total would be off by about 1e-6."""

    class Even(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens):
            return self.nothing.expand(*tokens.shape, 3)

    one = Batch(tokens=torch.zeros(1, 1).long(), targets=torch.zeros(1, 1).long())
    got = validation_loss(Even(), [one] * 5_000)
    alone = validation_loss(Even(), [one])
    assert got.loss == pytest.approx(alone.loss, rel=1e-12)


class Enough(Exception):
    pass


def test_a_tick_tells_the_targets_so_far_and_may_stop_it_all():
    model, ticks = build(dropout=0.9).train(), []
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    first = validation_loss(model, batches(), tick=ticks.append)
    assert first == validation_loss(model, batches())  # so dropout was off
    counts = [int((batch.targets != IGNORE).sum()) for batch in batches()]
    assert ticks == [sum(counts[: n + 1]) for n in range(3)] and ticks[-1] == first.tokens

    def stop(done):
        assert not model.training and not torch.is_grad_enabled()
        raise Enough

    with pytest.raises(Enough):
        validation_loss(model, batches(), tick=stop)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_nothing_to_average_is_an_error():
    for nothing in ([], batches(hidden=1.1)):
        with pytest.raises(ValueError, match="no targets to average over"):
            validation_loss(build(), nothing)


def test_autocast_computes_in_half_precision_or_says_why_not(monkeypatch):
    model = build()
    if hardware.cpu_multiplies("bfloat16"):
        got = validation_loss(model, batches(), autocast=torch.bfloat16)
        want = validation_loss(model, batches())
        assert got != want and got.loss == pytest.approx(want.loss, rel=0.03)  # 8 bits of mantissa
    monkeypatch.setattr(hardware, "cpu_multiplies", lambda name: False)
    model.register_forward_pre_hook(lambda *_: pytest.fail("this would have ended the process"))
    with pytest.raises(ValueError, match="bfloat16 products do not run on this CPU"):
        validation_loss(model, batches(), autocast=torch.bfloat16)


FACTS = {"ann?": "rome", "bob of old?": "ulm", "cy?": "oslo", "di the elder?": "bern"}


@pytest.fixture(scope="module")
def taught():
    """A model that knows four facts by heart, and so when to stop."""
    model = build()
    pad, mask = TOKENIZER.pad, TOKENIZER.mask
    rows = [
        [*TOKENIZER.encode(question), mask, *TOKENIZER.encode(answer), mask]
        for question, answer in FACTS.items()
    ]
    length = max(map(len, rows))
    text = torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        logits = model(text[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
    return model


def ask(*texts):
    return [Question(text, FACTS.get(text)) for text in texts]


def test_what_was_taught_is_answered(taught):
    answers = answer_questions(taught, TOKENIZER, ask(*FACTS))
    assert [(a.question, a.expected, a.given) for a in answers] == [
        (question, answer, answer) for question, answer in FACTS.items()
    ]
    assert all(0.5 < answer.confidence <= 1 for answer in answers)
    assert accuracy(answers) == 1.0


@torch.no_grad()
def test_confidence_is_the_probability_of_the_answer_and_its_closing_mask(taught):
    asked = ask("bob?", "ann of old?", "cy?")
    for answer in answer_questions(taught, TOKENIZER, asked):
        prompt = [*TOKENIZER.encode(answer.question), TOKENIZER.mask]
        after = [*TOKENIZER.encode(answer.given), TOKENIZER.mask]
        logs = taught.double()(torch.tensor([[*prompt, *after]]))[0].log_softmax(-1)
        taught.float()
        want = math.prod(
            logs[len(prompt) - 1 + n, token].exp().item() for n, token in enumerate(after)
        )
        assert answer.confidence == pytest.approx(want, rel=1e-9)


def test_answers_do_not_depend_on_the_batch(taught):
    texts = [*FACTS, "bob?", "a?", "", "the elder of old rome?"]
    together, *others = (
        answer_questions(taught, TOKENIZER, ask(*texts), batch=n) for n in (64, 3, 1)
    )
    for other in others:
        assert [a.given for a in other] == [a.given for a in together]
        assert [a.confidence for a in other] == pytest.approx([a.confidence for a in together])


def test_the_model_is_copied_once_for_all_the_batches(taught, monkeypatch):
    copies, deepcopy = [], copy.deepcopy

    def counted(x, *memo):
        copies.extend([] if memo else [x])  # with a memo it is a part of another copy
        return deepcopy(x, *memo)

    monkeypatch.setattr(copy, "deepcopy", counted)
    answer_questions(taught, TOKENIZER, ask(*FACTS), batch=1)
    assert len(copies) == 1


def test_an_answer_is_cut_at_the_longest(taught):
    (answer,) = answer_questions(taught, TOKENIZER, ask("cy?"), longest=2)
    assert answer.given == "os" and answer.confidence > 0.5


def test_questions_tick_and_leave_the_model_as_it_was(taught):
    taught.train()
    ticks = []
    answer_questions(taught, TOKENIZER, ask(*FACTS), batch=3, tick=ticks.append)
    assert ticks == [3, 4] and taught.training
    assert next(taught.parameters()).dtype == torch.float32
    assert answer_questions(taught, TOKENIZER, []) == []


def test_accuracy_is_over_the_questions_with_a_known_answer():
    def answer(given, expected):
        return Answer(question="?", expected=expected, given=given, confidence=1.0)

    some = [answer("rome", "rome"), answer("rome ", "rome"), answer("ulm", None)]
    assert accuracy(some) == 0.5
    with pytest.raises(ValueError, match="no answer has an expected text"):
        accuracy([answer("ulm", None)])


def test_nonsense_is_refused(taught):
    with pytest.raises(ValueError, match="batch is 0"):
        answer_questions(taught, TOKENIZER, ask("cy?"), batch=0)
    with pytest.raises(ValueError, match="no mask to ask with"):
        answer_questions(taught, CharacterTokenizer(["a"], special=False), ask("a"))
