"""Conversions of weights: written as source, run as source, with what has no partner named."""

import pytest
import torch
from torch import nn

from attnlab.audit.errors import InputError
from attnlab.doctor.carry import Carrier, Heads, Moves, Weights, load, state_of
from attnlab.doctor.pairs.compact import Compact
from attnlab.doctor.pairs.separate import Separate
from attnlab.doctor.pairs.style import Style

HEADS = Heads(4, 2, 8)


def carrier(a, b, rules=None, heads=HEADS):
    return Carrier(Weights.of(a), Weights.of(b), (heads, heads), rules)


def test_separate_weights_become_fused_ones_and_come_back():
    a, b = Separate(Style()).double(), Compact(Style()).double()
    there, back = carrier(a, b).write(Moves()), carrier(b, a).write(Moves())
    assert not there.alone_a + there.alone_b + back.alone_a + back.alone_b
    again = back.run(there.run(state_of(a)))
    assert all(torch.equal(one, again[name]) for name, one in state_of(a).items())


def test_the_source_imports_torch_and_nothing_else():
    moves = Moves().wrapped(("q",), "half_split_to_interleaved({}, 4)")
    source = carrier(Separate(Style()), Compact(Style())).write(moves).source
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    assert imports == ["import torch", "from torch import Tensor"]
    assert "for n in range(2):" in source and "def half_split_to_interleaved" in source
    assert "def tiled_to_neighbours" not in source


def test_layers_that_differ_stand_line_by_line():
    a, b = Separate(Style()), Separate(Style())
    b.layers[1].extra = nn.Linear(3, 3)
    found = carrier(a, b).write(Moves())
    assert found.alone_b == ("layers.1.extra.weight", "layers.1.extra.bias")
    assert set(found.run(state_of(a))) == set(state_of(a))


def test_matrices_that_are_not_square_are_turned_by_their_shape():
    a, b = Separate(Style(turned=True)), Separate(Style())
    text = carrier(a, b).write(Moves()).carried
    assert text["layers.0.attention.wk.weight"] == 'a["layers.0.attention.wk.weight"].T'
    assert text["layers.0.attention.wq.weight"] == 'a["layers.0.attention.wq.weight"]'


def test_rules_give_names_that_no_rule_of_ours_knows():
    class Odd(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.layers = nn.ModuleList(nn.ParameterDict() for _ in range(2))
            for layer in self.layers:
                layer[name] = nn.Parameter(torch.randn(5, 5))
                layer[f"{name}2"] = nn.Parameter(torch.randn(5, 5))

    a, b = Odd("blue"), Odd("red")
    assert len(carrier(a, b).write(Moves()).alone_b) == 4  # two of one shape: not by chance
    rules = {r"layers\.(\d+)\.blue(2?)": r"layers.\1.red\2"}
    found = carrier(a, b, rules).write(Moves())
    assert found.carried["layers.1.red2"] == 'a["layers.1.blue2"]' and not found.alone_b


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            {"zzz": "output.weight"},
            "'zzz' matches no whole name of A, such as tok_embeddings.weight",
        ),
        ({r"layers\.(\d+)\.attention\.wq": "q"}, "name of A, such as layers.0.attention.wq.weight"),
        (
            {r"norm\.weight": "norm.wieght"},
            "the rules call norm.weight of A 'norm.wieght', which is nothing in B",
        ),
    ],
)
def test_a_rule_about_nothing_is_refused(rules, said):
    with pytest.raises(InputError) as caught:
        carrier(Separate(Style()), Separate(Style()), rules)
    assert said in str(caught.value)


def test_a_rule_may_give_a_name_in_common_use():
    rules = {r"output\.weight": "lm_head.weight"}
    assert not carrier(Separate(Style()), Separate(Style()), rules).write(Moves()).alone_b


def test_the_only_one_of_a_shape_that_is_left_is_the_partner():
    a, b = Separate(Style()), Separate(Style())
    a.register_parameter("strange", nn.Parameter(torch.randn(7)))
    b.register_parameter("other", nn.Parameter(torch.randn(7)))
    assert carrier(a, b).write(Moves()).carried["other"] == 'a["strange"]'


def test_a_name_that_could_be_code_is_refused():
    a = nn.Module()
    a.register_parameter('x"] + evil() + a["', nn.Parameter(torch.zeros(2)))
    with pytest.raises(ValueError, match="which no checkpoint has"):
        carrier(a, a)


def test_a_tied_head_is_read_from_its_first_name():
    a, b = Compact(Style(tied=True)), Separate(Style())
    assert carrier(a, b).write(Moves()).carried["output.weight"] == 'a["wte.weight"]'


def test_w1_w2_w3_are_told_apart_by_shape():
    a, b = Separate(Style()), Compact(Style())
    text = carrier(a, b).write(Moves()).carried["h.0.mlp.c_fc.weight"]
    assert text.index("w1") < text.index("w3") and "w2" not in text


def test_what_is_loaded_is_what_the_conversion_gave():
    a, b = Separate(Style()), Separate(Style())
    load(b, carrier(a, b).write(Moves()).run(state_of(a)))
    assert all(torch.equal(one, state_of(b)[name]) for name, one in state_of(a).items())
