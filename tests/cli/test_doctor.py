"""`attnlab diff`: exit codes, JSON, the conversion as a file, and slips in one line."""

import json
import runpy

import pytest
import torch

CODE = """
from attnlab.doctor.pairs.separate import Separate
from attnlab.doctor.pairs.style import Style

def make(layout="half-split", base=10000.0, residual=1.0, vocabulary=61, positions="rotary"):
    return Separate(
        Style(
            layout=layout,
            base=base,
            residual=residual,
            vocabulary=vocabulary,
            positions=positions,
            depth=1,
        )
    )
"""


@pytest.fixture
def diff(attnlab, tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return lambda *words: attnlab("diff", "mine.py:make", "mine.py:make", *words)


def test_equal_models_are_0(diff):
    code, out, _ = diff("base=500.0", "--json")
    assert code == 0 and json.loads(out)["equal"] is True


def test_a_difference_is_1_with_the_cause_and_a_conversion_that_runs(diff, tmp_path):
    code, out, err = diff("b.layout=interleaved", "--json", "--convert", "to_b.py")
    found = json.loads(out)
    assert code == 1 and "wrote to_b.py" in err
    assert found["causes"] == [{"name": "rotary-layout", "a": "half-split", "b": "interleaved"}]
    convert = runpy.run_path(str(tmp_path / "to_b.py"))["convert"]
    from attnlab.doctor.pairs.separate import Separate
    from attnlab.doctor.pairs.style import Style

    state = Separate(Style(depth=1)).state_dict()
    moved = convert(state)
    assert set(moved) == set(state)
    assert sorted(moved["layers.0.attention.wq.weight"].flatten().tolist()) == sorted(
        state["layers.0.attention.wq.weight"].flatten().tolist()
    )
    assert torch.equal(moved["output.weight"], state["output.weight"])


def test_the_answer_is_in_words_first(diff):
    code, out, _ = diff("b.base=500.0")
    lines = out.splitlines()
    assert code == 1 and lines[:2] == [
        "different: rotary-base",
        "  rotary-base: A has 10000; B has 500",
    ]
    assert "convert" not in out  # no weights moved


def test_what_nothing_explains_is_1_and_says_where(diff):
    code, out, _ = diff("b.residual=0.5", "positions=alibi")
    assert code == 1 and out.startswith("different, and none of the known causes explains it")
    assert "the first place where they part: layers.0" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("b.vocabulary=50",), "give outputs of"),
        (("b.layuot=interleaved",), "did you mean 'layout'"),
        (("--map", "rules.json"), "rules.json"),
        (("--convert", "nowhere/a.py"), "there is no folder nowhere"),
        (("--html", "mine.py"), "would be replaced"),
    ],
)
def test_a_slip_is_one_line_and_2(diff, words, said):
    code, out, err = diff(*words)
    assert code == 2 and not out and said in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"(": "x"}', "{"])
def test_rules_that_are_none_are_one_line_and_2(diff, tmp_path, text):
    (tmp_path / "rules.json").write_text(text)
    code, _, err = diff("--map", "rules.json")
    assert code == 2 and "rules.json" in err and len(err.strip().splitlines()) == 1


def test_code_that_raises_is_one_line_and_2(attnlab, tmp_path):
    (tmp_path / "bad.py").write_text(
        "from torch import nn\nclass Bad(nn.Module):\n"
        "    def __init__(self):\n        raise KeyError('x')\n"
    )
    code, _, err = attnlab("diff", "bad.py:Bad", "bad.py:Bad")
    assert code == 2 and "cannot be made" in err and len(err.strip().splitlines()) == 1


def test_a_page_is_written(diff, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, _ = diff("b.base=500.0", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert code == 1 and "rotary-base" in page and "<script" not in page


def test_help_says_what_none_is(attnlab):
    code, out, _ = attnlab("diff", "--help")
    assert code == 0 and "none is Python's None" in " ".join(out.split())
