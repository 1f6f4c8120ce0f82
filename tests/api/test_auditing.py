"""`attnlab.audit` gives the certificate of the command line, of files and of live modules."""

from pathlib import Path

import pytest
import torch
from torch import nn

import attnlab

EXAMPLES = Path(__file__).parents[2] / "examples"
LEAKY = f"{EXAMPLES / 'leaky.py'}:LeakyAttention"


def test_a_certificate_is_that_of_the_command_line(command, tmp_path):
    found = attnlab.audit(LEAKY, width=8, heads=2, declare={"causal": True})
    said = command("audit", LEAKY, "width=8", "heads=2", "--declare", "causal=true", "--json")
    assert found.plain() == said and found.verdict == "fail" and not found.passed
    assert "causality" in [one.name for one in found.failed]
    assert "output 0 moves" in found.counterexamples["causality"]
    assert "attnlab" not in found.scripts["LeakyAttention_causality.py"].split('"""')[2]
    html = found._repr_html_()
    assert "The smallest examples" in html and "<script" not in html and "smallest" in repr(found)
    page = found.save(tmp_path / "certificate.html").read_text()
    assert "attnlab audit" in page and "--declare=causal=true" in page
    assert found.to_csv().startswith("property,verdict,detail")


class Mine(nn.Module):
    def __init__(self, leaks):
        super().__init__()
        self.leaks = leaks

    def forward(self, x):
        weights = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)
        weights = weights if self.leaks else weights.tril()
        return weights / weights.sum(-1, keepdim=True) @ x


@pytest.mark.parametrize(("leaks", "verdict"), [(False, "pass"), (True, "fail")])
def test_a_module_of_a_notebook_is_audited_as_it_is(leaks, verdict):
    found = attnlab.audit(Mine(leaks), width=8, declare=["causal=true"])
    assert found.verdict == verdict and found.target == "Mine"


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ([LEAKY], {}, [LEAKY]),
        ([LEAKY], {"declare": {"cusal": True}}, [LEAKY, "--declare", "cusal=true"]),
        ([LEAKY], {"timeout": -1}, [LEAKY, "--timeout", "-1"]),
    ],
)
def test_an_error_is_the_line_of_the_command_line(given, named, words, command):
    with pytest.raises(attnlab.Error) as raised:
        attnlab.audit(*given, **named)
    assert str(raised.value) == command("audit", *words)


def test_what_tells_nothing_of_an_object_is_refused_and_not_ignored():
    def full(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    with pytest.raises(attnlab.Error, match=r"full takes no 'causal'; .*--declare causal=true"):
        attnlab.audit(full, causal=True)
    with pytest.raises(attnlab.Error, match="Mine takes no 'bogus'"):
        attnlab.audit(Mine(False), width=8, bogus=3)


def test_what_cannot_be_audited_is_one_line():
    with pytest.raises(attnlab.Error, match="no width found; name it"):
        attnlab.audit(Mine(False))
    with pytest.raises(attnlab.Error, match="Mine is a class"):
        attnlab.audit(Mine)
    with pytest.raises(attnlab.Error, match="many targets"):
        attnlab.audit("hf:llama*")


def test_details_of_hostile_code_are_shown_as_text():
    class Evil(nn.Module):
        def forward(self, x):
            raise ValueError("<script>alert(1)</script>\x1b[2J")

    try:
        html = attnlab.audit(Evil(), declare={"causal": True})._repr_html_()
    except attnlab.Error as error:
        html = "".join(error._render_traceback_())
        assert "\x1b" not in html
    else:
        assert "<script" not in html
