"""Code of JAX goes through the same properties; tried where JAX and Flax are installed."""

import pytest
import torch
from audit.repro.scripts import ends

from attnlab.audit import Contract
from attnlab.audit.contract import Certificate, Finding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.causality import fails as causality_fails
from attnlab.audit.properties.property import Case
from attnlab.audit.repro.smallest import examples_of
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.jax_code import adopt, is_from_jax
from attnlab.audit.subject.load import from_file

with_jax = pytest.mark.filterwarnings("ignore")
FUNCTIONS = """
import jax
import jax.numpy as jnp

SEEN = 0

def attend(q, k, v):
    t = q.shape[1]
    return jax.nn.dot_product_attention(q, k, v, mask=jnp.tril(jnp.ones((t, t), bool), SEEN))
"""
MODULES = """
import jax.numpy as jnp
from flax import linen, nnx

def seen(x, leak):
    return jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool), int(leak))

class Own(nnx.Module):
    def __init__(self, width, leak, rngs):
        self.leak = leak
        self.inner = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
    def __call__(self, x):
        return self.inner(x, mask=seen(x, self.leak))

class Compact(linen.Module):
    width: int
    leak: bool
    @linen.compact
    def __call__(self, x):
        return linen.MultiHeadDotProductAttention(num_heads=4)(x, mask=seen(x, self.leak))

def by_nnx(width=32, leak=False):
    return Own(width, leak, nnx.Rngs(0))

def by_linen(width=32, leak=False):
    return Compact(width, leak)
"""


def written(folder, text):
    path = folder / "theirs.py"
    path.write_text(text)
    return path


def leaks(subject):
    """Whether output 1 of 5 moves with input 2."""
    probe = Probe(subject, Contract())
    x, other = probe.draw(1, 5), probe.draw(1, 5, 1)
    changed = x.clone()
    changed[:, 2] = other[:, 2]
    return bool(((probe.run(changed) - probe.run(x))[:, 1].abs() > 1e-9).any())


def test_code_of_pytorch_is_left_alone():
    def attend(q, k, v):
        return v

    layer = torch.nn.Linear(2, 2)
    assert adopt(attend, {}) is attend
    assert adopt(layer, {}) is layer


@with_jax
def test_functions_run_in_float64_and_show_their_leak(tmp_path):
    pytest.importorskip("jax")
    for seen, leaking in ((0, False), (1, True)):
        path = written(tmp_path, FUNCTIONS.replace("SEEN = 0", f"SEEN = {seen}"))
        subject = subject_for(from_file(f"{path}:attend", {}), {}, "attend")
        assert subject.dtype is torch.float64
        subject = Probe(subject, Contract(layout="bthd")).subject
        assert is_from_jax(subject.convention.code)
        assert leaks(subject) == leaking


@with_jax
def test_a_script_calls_a_function_of_jax(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    path = written(tmp_path, FUNCTIONS.replace("SEEN = 0", "SEEN = 1"))
    subject = subject_for(from_file(f"{path}:attend", {}), {}, "attend")
    sizes = {"batch": 1, "length": 3, "cuts": [1], "changed": 3, "factor": 1.0, "seed": 0}
    case = Case(fails=causality_fails, sizes=sizes, tolerance=1e-9)
    finding = Finding(name="causality", verdict="fail", detail="it leaks", example=case)
    contract = Contract(causal=True, layout="bthd")
    certificate = Certificate(target="attend", contract=contract, findings=(finding,))
    (one,) = examples_of(certificate, subject, f"{path}:attend", {})
    assert "from_jax(module.attend)" in one.script
    script = tmp_path / one.file
    script.write_text(one.script)
    assert ends(script, path, monkeypatch) == 1
    written(tmp_path, FUNCTIONS)
    assert ends(script, path, monkeypatch) == 0


@with_jax
@pytest.mark.parametrize("name", ["by_nnx", "by_linen"])
def test_modules_of_flax_have_their_weights_as_parameters(tmp_path, name):
    pytest.importorskip("flax")
    path = written(tmp_path, MODULES)
    for leak in (False, True):
        made = from_file(f"{path}:{name}", {"leak": leak})
        subject = subject_for(made, {}, name)  # the width is that of its first weight
        assert subject.dtype is torch.float64
        assert len(list(subject.module.parameters())) == 8
        assert leaks(subject) == leak
        before = subject.run(subject.draw(1, 5, 0))
        with torch.no_grad():
            next(subject.module.parameters()).add_(0.5)
        assert not torch.equal(subject.run(subject.draw(1, 5, 0)), before)
