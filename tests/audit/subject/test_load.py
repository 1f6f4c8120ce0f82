"""From the words of a person to code: every slip has a line that says what to do."""

import pytest

from attnlab.audit.subject.load import defaults_of, expression, from_file, options_of

CODE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        return self.inner(x)

class Picky(nn.Module):
    def __init__(self, width=3):
        raise RuntimeError("odd widths are\\nnot supported")

def attend(q, k, v):
    return v

def build(width=4):
    return Layer(width)

NUMBER = 3
layer = Layer(4)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def test_classes_functions_and_factories(file):
    assert from_file(f"{file}:Layer", {"width": 5}).inner.in_features == 5
    assert from_file(f"{file}:build", {"width": 6}).inner.in_features == 6
    assert from_file(f"{file}:attend", {}).__name__ == "attend"
    assert from_file(f"{file}::build", {"width": 7}).inner.in_features == 7  # as pytest has it


def test_what_was_made_can_be_said(file, tmp_path):
    from_file(f"{file}:build", {})
    assert expression(f"{file}:build", {"width": 6}) == "module.build(width=6)"
    assert expression(f"{file}:attend", {}) == "module.attend"
    path = tmp_path / "said.py"
    path.write_text(SETTINGS)
    from_file(f"{path}:Said", {})
    options = {"width": 5, "bias": False}
    assert expression(f"{path}:Said", {}) == "module.Said(args=module.ModelArgs())"
    said = "module.Model(config=module.ModelArgs(width=5), bias=False)"
    assert expression(f"{path}:Model", options) == said


def test_files_of_one_name_in_two_folders_are_kept_apart(tmp_path, monkeypatch):
    for folder, field in (("a", "width"), ("b", "dim")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "attn.py").write_text(SETTINGS.replace("width", field))
    made = {folder: from_file(f"{tmp_path}/{folder}/attn.py:Model", {}) for folder in "ab"}
    assert type(made["a"]).__module__ != type(made["b"]).__module__
    for folder, field in (("a", "width"), ("b", "dim"), ("a", "width")):
        target = f"{tmp_path}/{folder}/attn.py:Model"
        assert list(defaults_of(target, {})) == ["bias", field, "heads"], folder
        said = f"module.Model(config=module.ModelArgs({field}=5))"
        assert expression(target, {field: 5}) == said
    monkeypatch.chdir(tmp_path / "a")  # the same file by another path
    assert defaults_of("attn.py:Model", {}) == defaults_of(f"{tmp_path}/b/../a/attn.py:Model", {})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Layer", {}, "Layer in .* needs width; add width=…"),
        ("Layer", {"width": 4, "head": 2}, "takes no 'head'; did you mean 'heads'"),
        ("Lyer", {}, "has no 'Lyer'; did you mean 'Layer'"),
        ("layer", {"width": 4, "causal": True}, "is declared: --declare causal=true"),
        ("attend", {"window": 4}, "takes no 'window'; what it must do is declared: --declare win"),
        ("attend", {"kv_head": 4}, "attend in .* takes no 'kv_head'; did you mean 'kv_heads'"),
        ("NUMBER", {}, "is int; name a class or a function"),
        ("Picky", {}, "cannot be made: RuntimeError: odd widths"),
    ],
)
def test_slips(file, name, options, message):
    with pytest.raises(ValueError, match=message):
        from_file(f"{file}:{name}", options)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="is no file"):
        from_file(f"{tmp_path}/none.py:A", {})
    with pytest.raises(ValueError, match=r"write file\.py:Name, module:Name or hf:ARCH"):
        from_file("Layer", {})
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ValueError, match=r"wrong\.py, line 2"):
        from_file(f"{tmp_path}/wrong.py:f", {})
    (tmp_path / "fails.py").write_text("import nowhere_to_be_found\n")
    with pytest.raises(ValueError, match="cannot be imported: ModuleNotFoundError"):
        from_file(f"{tmp_path}/fails.py:f", {})


def test_options_are_numbers_words_and_switches():
    words = ["width=32", "name=small", "bias=true", "window=none", "sizes=(1,2)", "--rate=0.5"]
    expected = {"width": 32, "name": "small", "bias": True, "window": None, "sizes": (1, 2)}
    assert options_of(words) == {**expected, "rate": 0.5}
    with pytest.raises(ValueError, match="'width' is not an option; write key=value"):
        options_of(["width"])


SETTINGS = """
from dataclasses import dataclass
from torch import nn

@dataclass
class ModelArgs:
    width: int = 8
    heads: int = 2

class Model(nn.Module):
    def __init__(self, config, bias=True):
        super().__init__()
        self.inner = nn.Linear(config.width, config.heads, bias=bias)

class Other(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.size = size

class Said(nn.Module):
    def __init__(self, args: "ModelArgs"):
        super().__init__()
        self.width = args.width
"""


def test_options_are_gathered_into_a_settings_object(tmp_path):
    path = tmp_path / "settings.py"
    path.write_text(SETTINGS)
    made = from_file(f"{path}:Model", {"width": 5, "bias": False})
    assert made.inner.weight.shape == (2, 5) and made.inner.bias is None
    assert from_file(f"{path}:Said", {"width": 6}).width == 6
    with pytest.raises(ValueError, match="ModelArgs takes no 'widht'; did you mean 'width'"):
        from_file(f"{path}:Model", {"widht": 5})
    with pytest.raises(ValueError, match=r"Other in .* needs size"):
        from_file(f"{path}:Other", {})
