"""Code that takes an object of settings is made from plain options, whatever kind that object is.

Each kind is written as people write it, in files of its own; a script makes the same code again.
"""

import runpy
import sys

import pytest
import torch

from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError
from attnlab.audit.sandbox import Request, audit_here
from attnlab.audit.subject.load import defaults_of, expression, from_file

LAYER = """
class Layer(nn.Module):
    def __init__(self, {parameter}):
        super().__init__()
        self.inner = nn.Linear({width}, {heads}, bias=False)
        self.rate = {rate}
    def forward(self, x):
        return self.inner(x).flip(1)
"""
READS = {"width": "config.n_embd", "heads": "config.n_head", "rate": "config.drop"}
HEAD = "import argparse\nimport torch\nfrom torch import nn\n"
KEYWORDS = """
class LayerConfig:
    def __init__(self, n_embd=5, n_head=3, drop=0.1):
        self.n_embd, self.n_head, self.drop = n_embd, n_head, drop
"""
# class attributes are defaults, and any other keyword becomes an attribute
ATTRIBUTES = """
class LayerConfig:
    drop = 0.1

    def __init__(self, n_embd, n_head, **more):
        self.n_embd = n_embd
        self.n_head = n_head
        for name, value in more.items():
            setattr(self, name, value)

class SmallLayerConfig(LayerConfig):
    depth = 1
"""
# a node of settings, and a method of the code that gives one
NODE = """
class Node:
    def __init__(self, **values):
        self.__dict__.update(values)
"""
DEFAULTS = """
    @staticmethod
    def get_default_config():
        return Node(n_embd=None, n_head=3, drop=0.1)
"""


def write(tmp_path, *parts, **reads):
    path = tmp_path / "code.py"
    reads = {"parameter": "config", **READS, **reads}
    text = HEAD + "".join(parts)
    for name, what in reads.items():
        text = text.replace(f"{{{name}}}", what)
    path.write_text(text)
    return f"{path}:Layer"


KINDS = {
    "keywords": ((KEYWORDS, LAYER), {}, "module.LayerConfig(n_embd=7, n_head=3, drop=0.5)"),
    "said": (
        (KEYWORDS.replace("LayerConfig", "Other"), LAYER),
        {"parameter": "config: 'Other | None'"},
        "module.Other(n_embd=7, n_head=3, drop=0.5)",
    ),
    "attributes": ((ATTRIBUTES, LAYER), {}, "module.LayerConfig(n_embd=7, n_head=3, drop=0.5)"),
    "defaults": (
        (NODE, LAYER, DEFAULTS),
        {},
        "fill_settings(module.Layer.get_default_config(), n_embd=7, n_head=3, drop=0.5)",
    ),
    "namespace": ((LAYER,), {}, "SimpleNamespace(n_embd=7, n_head=3, drop=0.5)"),
    "argparse": (
        (LAYER,),
        {"parameter": "config: argparse.Namespace"},
        "sys.modules['argparse'].Namespace(n_embd=7, n_head=3, drop=0.5)",
    ),
    "dict": (
        (LAYER,),
        {name: f"config['{what.partition('.')[2]}']" for name, what in READS.items()},
        "{'n_embd': 7, 'n_head': 3, 'drop': 0.5}",
    ),
    "default value": (
        (KEYWORDS, LAYER),
        {"parameter": "config=LayerConfig(9, 9)"},
        "module.LayerConfig(n_embd=7, n_head=3, drop=0.5)",
    ),
}
OPTIONS = {"n_embd": 7, "n_head": 3, "drop": 0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_options_become_settings_and_are_said_as_python(tmp_path, kind):
    parts, reads, said = KINDS[kind]
    target = write(tmp_path, *parts, **reads)
    made = from_file(target, OPTIONS)
    assert (made.inner.weight.shape, made.rate) == ((3, 7), 0.5)
    assert expression(target, OPTIONS) == f"module.Layer(config={said})"


@pytest.mark.parametrize("kind", ["attributes", "defaults", "namespace", "dict"])
def test_a_script_makes_the_same_code(tmp_path, kind, monkeypatch, capsys):
    parts, reads, _ = KINDS[kind]
    target = write(tmp_path, *parts, **reads)
    options = tuple(f"{name}={value}" for name, value in OPTIONS.items())
    answer = audit_here(Request(target=target, options=options, contract=Contract(causal=True)))
    [one] = [one for one in answer.examples if one["name"] == "causality"]
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with torch.random.fork_rng(), pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    assert stop.value.code == 1 and "wrong: output 0 moves" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("attributes", {}, "LayerConfig needs n_embd, n_head; add n_embd=… n_head=…"),
        ("namespace", {"drop": 0}, "it reads config.n_embd, config.n_head: add n_embd=… n_head=…"),
        ("dict", {"n_embd": 5}, "it reads config['n_head'], config['drop']: add n_head=… drop=…"),
        ("keywords", {"n_hed": 3}, "LayerConfig takes no 'n_hed'; did you mean 'n_head'?"),
        ("attributes", {**OPTIONS, "drp": 3}, "Layer in .* reads no 'drp'; did you mean 'drop'?"),
        ("namespace", {**OPTIONS, "causal": True}, "is declared: --declare causal=true"),
        ("keywords", {**OPTIONS, "window": 4}, "is declared: --declare window=4"),
    ],
)
def test_what_is_missing_or_not_taken_is_named(tmp_path, kind, options, line):
    parts, reads, _ = KINDS[kind]
    line = line.replace("[", r"\[").replace("]", r"\]").replace("?", r"\?")
    with pytest.raises(ValueError, match=line):
        from_file(write(tmp_path, *parts, **reads), options)


def test_settings_that_only_the_code_knows_need_no_option(tmp_path):
    assert from_file(write(tmp_path, KEYWORDS, LAYER), {}).inner.weight.shape == (3, 5)
    target = write(tmp_path, NODE, LAYER, DEFAULTS)
    assert from_file(target, {"n_embd": 2}).inner.weight.shape == (3, 2)
    assert defaults_of(target, {}) == {"n_embd": None, "n_head": 3, "drop": 0.1}


def test_the_person_may_name_a_class_a_dict_or_an_object(tmp_path):
    more = ATTRIBUTES + "SMALL = LayerConfig(4, 2)\n"
    target = write(tmp_path, more, LAYER)
    for name in ("SmallLayerConfig", "LayerConfig"):
        made = from_file(target, {"config": name, "n_embd": 6, "n_head": 1})
        assert made.inner.weight.shape == (1, 6)
    assert from_file(target, {"config": "SMALL", "n_head": 1}).inner.weight.shape == (1, 4)
    said = "module.Layer(config=fill_settings(module.SMALL, n_head=1))"
    assert expression(target, {"config": "SMALL", "n_head": 1}) == said
    assert from_file(target, {"config": "SMALL"}).inner.weight.shape == (2, 4)  # as it was
    target = write(
        tmp_path, "BASE = {'n_embd': 3, 'n_head': 2, 'drop': 0}\n", LAYER, **KINDS["dict"][1]
    )
    assert from_file(target, {"config": "BASE", "n_embd": 8}).inner.weight.shape == (2, 8)
    said = "module.Layer(config={**module.BASE, 'n_embd': 8})"
    assert expression(target, {"config": "BASE", "n_embd": 8}) == said


def test_an_error_of_their_own_is_not_taken_for_a_missing_setting(tmp_path):
    inside = LAYER.replace("self.rate = {rate}", "self.rate = {}[config['drop']]")
    target = write(tmp_path, inside, **KINDS["dict"][1])
    with pytest.raises(ValueError, match=r"cannot be made: KeyError: 0\.5"):
        from_file(target, OPTIONS)
    inside = LAYER.replace("self.rate = {rate}", "self.rate = nn.absent")
    with pytest.raises(ValueError, match="cannot be made: AttributeError: module"):
        from_file(write(tmp_path, inside), OPTIONS)


def test_a_parameter_that_is_no_settings_object_is_asked_for(tmp_path):
    plain = LAYER.replace("{width}", "size").replace("{heads}", "3").replace("{rate}", "0")
    for parameter in ("size", "size: int", "rope: nn.Module", "size, config=None"):
        with pytest.raises(ValueError, match=r"needs (size; add size=…|rope, which is a module)"):
            from_file(write(tmp_path, plain, parameter=parameter), {})
    target = write(tmp_path, LAYER, parameter="config, layer")
    with pytest.raises(ValueError, match="needs layer; add layer=…"):
        from_file(target, OPTIONS)
    assert from_file(target, {**OPTIONS, "layer": 1}).rate == 0.5


def test_a_config_of_transformers_is_found_by_class_and_by_annotation():
    pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    home = "transformers.models.llama.modeling_llama"
    made = from_file(f"{home}:LlamaAttention", {**small, "layer_idx": 0})
    assert made.q_proj.weight.shape == (16, 16) and made.layer_idx == 0
    sizes = {**small, "intermediate_size": 8, "vocab_size": 31, "num_hidden_layers": 1}
    model = from_file("transformers:LlamaForCausalLM", {**sizes, "attn_implementation": "eager"})
    assert model.config.vocab_size == 31 and model.config._attn_implementation == "eager"
    said = expression(f"{home}:LlamaAttention", {"hidden_size": 16, "layer_idx": 0})
    assert said == ("module.LlamaAttention(config=module.LlamaConfig(hidden_size=16), layer_idx=0)")


PLAIN, OTHER = "class Plain: pass\n", KEYWORDS.replace("Layer", "Other")


@pytest.mark.parametrize(
    ("beside", "chosen"),
    [
        ("class Output:\n    loss: float = 0\n", "SimpleNamespace"),  # given back, not taken
        ("class Sizes:\n    n_embd: int\n    n_head: int\n    drop: float\n", "module.Sizes"),
        (PLAIN + KEYWORDS + OTHER, "module.LayerConfig"),
        (PLAIN + KEYWORDS.replace("LayerC", "LaC") + OTHER, "module.LaConfig"),
        (PLAIN + KEYWORDS.replace("Layer", "A") + OTHER, "SimpleNamespace"),
    ],
)
def test_of_several_classes_the_one_of_that_name_is_taken(tmp_path, beside, chosen):
    target = write(tmp_path, "from dataclasses import dataclass\n@dataclass\n", beside, LAYER)
    assert from_file(target, OPTIONS).rate == 0.5
    assert expression(target, OPTIONS).startswith(f"module.Layer(config={chosen}(")


DEEP = (
    HEAD
    + """
class Config:
    def __init__(self, **given):
        vars(self).update(given)
    def check(self): pass

class Inner(nn.Module):
    def __init__(self, config):
        super().__init__()
        config.made = True
        self.layer = nn.Linear(config.n_embd, config.n_head * config.made)

class Other(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = nn.Linear(config.unread, 1)

class Outer(nn.Module):
    def __init__(self, config):
        super().__init__()
        config.check()
        self.blocks = nn.ModuleList(Inner(config) for _ in range(config.n_layer))
    def forward(self, x):
        return x
"""
)


def test_what_inner_code_reads_of_the_settings_is_named_at_once(tmp_path):
    path = tmp_path / "deep.py"
    path.write_text(DEEP)
    with pytest.raises(InputError, match=r"add n_layer=… n_embd=… n_head=…$"):
        from_file(f"{path}:Outer", {})
    given = {"n_embd": 8, "n_layer": 2, "n_head": 2}
    with pytest.raises(InputError, match=r"reads no 'n_heads'; did you mean 'n_head'"):
        from_file(f"{path}:Outer", {**given, "n_heads": 2})
