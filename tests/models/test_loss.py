"""The loss in chunks is the plain one, with its gradients, whatever the sizes."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab import config
from attnlab.compat import cpp_compiler
from attnlab.data.batches import IGNORE
from attnlab.kernels import hardware
from attnlab.models import loss
from attnlab.models.transformer import TransformerSettings

ROWS, WIDTH, VOCABULARY = (3, 5), 7, 13
CAPS = (None, 2.0)


def plain(x, head, targets, cap=None):
    logits = head(x)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    return F.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
    )


def problem(dtype=torch.float64, *, bias=False):
    """Rows without a target are among them, a whole chunk of them too."""
    torch.manual_seed(0)
    x = torch.randn(*ROWS, WIDTH, dtype=dtype, requires_grad=True)
    targets = torch.randint(VOCABULARY, ROWS)
    targets[0, 2], targets[2] = IGNORE, IGNORE
    return x, nn.Linear(WIDTH, VOCABULARY, bias=bias).to(dtype), targets


def gradients(found, x, head):
    """Of a loss that is scaled, as that of a step is."""
    return torch.autograd.grad(0.3 * found, [x, *head.parameters()])


@pytest.fixture(params=[1, 4, 15, 99])
def rows(request, monkeypatch):
    monkeypatch.setitem(loss.CHUNK, "cpu", 4 * VOCABULARY * request.param)
    return request.param


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_are_the_plain_ones_for_chunks_of_any_size(rows, bias, cap):
    x, head, targets = problem(bias=bias)
    mine, theirs = loss.head_loss(x, head, targets, cap), plain(x, head, targets, cap)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(gradients(mine, x, head), gradients(theirs, x, head))


@pytest.mark.parametrize("cap", CAPS)
def test_gradients_are_those_of_finite_differences(cap, monkeypatch):
    monkeypatch.setitem(loss.CHUNK, "cpu", 4 * VOCABULARY * 4)
    x, head, targets = problem(bias=True)

    def of(x, weight, bias):
        held = nn.Linear(WIDTH, VOCABULARY, device="meta")
        del held.weight, held.bias
        held.weight, held.bias = weight, bias
        return loss.head_loss(x, held, targets, cap)

    assert torch.autograd.gradcheck(of, (x, head.weight, head.bias))


def test_what_a_row_without_a_target_holds_takes_no_part(rows):
    x, head, targets = problem(bias=True)
    with torch.no_grad():
        x[0, 2], x[2, 1] = torch.nan, torch.inf
    found = loss.head_loss(x, head, targets)
    of_x, *others = gradients(found, x, head)
    assert found.isfinite() and not of_x[0, 2].any() and not of_x[2].any()
    assert all(one.isfinite().all() for one in others)


def test_no_more_than_a_chunk_of_logits_is_computed_at_once(monkeypatch):
    monkeypatch.setitem(loss.CHUNK, "cpu", 4 * 101 * 2)
    x = torch.randn(5, 3, requires_grad=True)
    head, targets, seen = nn.Linear(3, 101), torch.randint(101, (5,)), []
    linear = F.linear

    def noted(*args):
        seen.append(linear(*args))
        return seen[-1]

    monkeypatch.setattr(F, "linear", noted)
    loss.head_loss(x, head, targets).backward()
    assert [len(one) for one in seen] == [2, 2, 1]


COMPILED = """
import sys, torch
from attnlab.kernels import hardware
from attnlab.models import loss

hardware.tag_compiled_code()
problem, answers = torch.load(sys.argv[1], weights_only=True), []
loss.CHUNK["cpu"] = 4 * 13 * 4
for cap in (None, 2.0):
    head = torch.nn.Linear(7, 13)
    head.load_state_dict(problem["head"])
    x = problem["x"].requires_grad_()

    def of(x):
        return 0.3 * loss.head_loss(torch.sin(x), head, problem["targets"], cap)

    found = torch.compile(of, fullgraph=True)(x)
    answers.append([found.detach(), *torch.autograd.grad(found, [x, *head.parameters()])])
torch.save(answers, sys.argv[1])
"""


@pytest.mark.skipif(cpp_compiler() is None, reason="torch.compile needs a compiler")
def test_compiled_it_is_the_same(tmp_path):
    """In a process of its own: the checks of shapes that tests run under cannot be compiled."""
    x, head, targets = problem(torch.float32, bias=True)
    place = tmp_path / "problem"
    torch.save({"x": x.detach(), "head": head.state_dict(), "targets": targets}, place)
    command = [sys.executable, "-c", COMPILED, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for cap, (found, *grads) in zip(CAPS, torch.load(place, weights_only=True), strict=True):
        right = plain(torch.sin(x), head, targets, cap)
        torch.testing.assert_close(found, 0.3 * right.detach())
        torch.testing.assert_close(tuple(grads), gradients(right, x, head))


def test_under_autocast_products_are_in_half_precision_and_sums_are_not(rows):
    if not hardware.cpu_multiplies("bfloat16"):
        pytest.skip("bfloat16 products do not run on this CPU")
    x, head, targets = problem(torch.float32, bias=True)
    exact = gradients(plain(x, head, targets), x, head)
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = loss.head_loss(x, head, targets), plain(x, head, targets)
    assert mine.dtype == torch.float32
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # the same logits, rounded
    for one, other, right in zip(
        gradients(mine, x, head), gradients(theirs, x, head), exact, strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - right).abs().max() <= 2 * (other - right).abs().max() + 1e-6


@pytest.mark.parametrize(
    "words", [["tied=true"], ["tied=false"], ["logit_cap=0.5"], ["norm=layer", "bias=true"]]
)
def test_a_transformer_with_targets_gives_their_loss(words, rows):
    torch.manual_seed(0)
    settings = ["vocabulary=13", "width=12", "depth=1", "attention.heads=2", *words]
    model = config.override(TransformerSettings(), settings).build().double()
    tokens, targets = torch.randint(13, (2, *ROWS))
    targets[1, 3:] = IGNORE
    both = []
    for found in (model(tokens, targets=targets), plain(model(tokens), nn.Identity(), targets)):
        of_all = torch.autograd.grad(found, list(model.parameters()))
        both.append([found.detach(), *of_all])
    torch.testing.assert_close(*both)


def test_what_is_large_depends_on_the_logits_alone():
    assert not loss.is_large(4096, 8192, "cpu") and loss.is_large(4097, 8192, "cpu")
    assert not loss.is_large(4096, 50_304, "cuda") and loss.is_large(16_384, 50_304, "cuda")


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.sum(-1, keepdim=True) * torch.arange(VOCABULARY)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("kind", ["a class of its own", "a hook"])
def test_a_head_that_does_more_than_a_product_does_it_here_too(kind, cap):
    x, head, targets = problem()
    if kind == "a hook":
        head.register_forward_hook(lambda module, given, found: 3 * found)
    else:
        adapted = Adapted(WIDTH, VOCABULARY, bias=False)
        adapted.weight, head = head.weight, adapted
    mine, theirs = loss.head_loss(x, head, targets, cap), plain(x, head, targets, cap)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(gradients(mine, x, head), gradients(theirs, x, head))


@pytest.mark.parametrize("shape", [(5,), (3, 1), (5, 3)])
def test_targets_of_another_shape_are_refused(shape, unchecked_shapes):
    x, head, _ = problem()
    with pytest.raises(ValueError, match=r"targets have shape .*there is one for each row .*3, 5"):
        loss.head_loss(x, head, torch.zeros(shape, dtype=torch.long))


def test_a_second_derivative_is_an_error():
    x, head, targets = problem()
    (once,) = torch.autograd.grad(loss.head_loss(x, head, targets) ** 2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()


def test_autocast_leaves_float64_alone():
    x, head, targets = problem()
    with torch.autocast("cpu", torch.bfloat16):
        mine = loss.head_loss(x, head, targets)
    torch.testing.assert_close(mine, plain(x, head, targets))


def test_the_loss_of_the_last_token_alone_is_of_its_logits():
    model = config.override(
        TransformerSettings(vocabulary=VOCABULARY, context=16, width=8, depth=1),
        ["attention.heads=2"],
    ).build()
    tokens = torch.arange(8)[None]
    last = model(tokens, last=True, targets=tokens[:, :1])
    torch.testing.assert_close(last, plain_of(model(tokens, last=True), tokens[:, :1]))


def plain_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("words", [[], ["loss"]])
def test_the_script_of_the_published_figures_runs(words, monkeypatch, capsys):
    monkeypatch.setitem(loss.LARGE, "cpu", loss.LARGE["cpu"])  # put back afterwards
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "vocabulary.py"))
    with torch.random.fork_rng():
        script["main"]([*words, "width=16", "depth=1", "vocabulary=50", "turns=1"])
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"]["at once"] == 1 and {"in chunks", "at once"} <= found["peak"].keys()
    median, least, most = found["seconds"]["in chunks"]
    assert 0 < least <= median <= most


def test_the_losses_that_the_script_compares_are_the_same():
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "vocabulary.py"))
    sizes = {"width": 7, "vocabulary": 13, "context": 5, "batch": 3}
    first, *others = (run() for run in script["losses"](sizes).values())
    for other in others:
        torch.testing.assert_close(other, first)
