"""Parameters by their names: the same part in many code bases, and nothing where no rule knows."""

import pytest

from attnlab.interop.names import Part, parts_of

QUERIES = [
    "model.layers.3.self_attn.q_proj.weight",
    "layers.3.attention.wq.weight",
    "blocks.3.attn.query.weight",
    "h.3.attn.to_q.weight",
    "transformer.layer.3.attention.q_lin.weight",
    "layers.3.mixer.linear_q.weight",
]


@pytest.mark.parametrize("name", QUERIES)
def test_queries_have_many_names(name):
    assert parts_of([name])[name] == Part(0, "q")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("transformer.h.0.attn.c_attn.bias", Part(0, "qkv", "bias")),
        ("transformer.h.0.attn.c_proj.weight", Part(0, "o")),
        ("transformer.h.0.mlp.c_proj.weight", Part(0, "down")),
        ("gpt_neox.layers.0.attention.query_key_value.weight", Part(0, "qkv")),
        ("gpt_neox.layers.0.attention.dense.weight", Part(0, "o")),
        ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", Part(0, "up")),
        ("layers.0.self_attn.in_proj_weight", Part(0, "qkv")),
        ("layers.0.self_attn.in_proj_bias", Part(0, "qkv", "bias")),
        ("layers.0.self_attn.k_norm.weight", Part(0, "k_norm")),
        ("layers.0.mlp.gate_up_proj.weight", Part(0, "gate_up")),
        ("model.embed_tokens.weight", Part(None, "embed")),
        ("wpe.weight", Part(None, "positions")),
        ("output.weight", Part(None, "head")),
        ("layers.0.mystery.weight", Part(0, "layers.0.mystery.weight")),
    ],
)
def test_parts(name, part):
    assert parts_of([name])[name] == part


def test_norms_are_numbered_within_their_layer_and_a_bias_belongs_to_its_weight():
    names = [
        "h.0.ln_1.weight",
        "h.0.ln_1.bias",
        "h.0.ln_2.weight",
        "h.7.ln_1.weight",
        "ln_f.weight",
    ]
    found = list(parts_of(names).values())
    assert found[:3] == [Part(0, "norm 1"), Part(0, "norm 1", "bias"), Part(0, "norm 2")]
    assert found[3:] == [Part(1, "norm 1"), Part(None, "norm 1")]


def test_a_part_that_two_parameters_seem_to_be_is_none():
    names = ["layers.0.attention.wq.weight", "layers.0.attention.query.weight"]
    assert [one.name for one in parts_of(names).values()] == names


def test_beside_queries_an_output_is_that_of_attention_and_elsewhere_it_is_the_head():
    bare = ["q_proj.weight", "k_proj.weight", "out_proj.weight"]
    assert [one.name for one in parts_of(bare).values()] == ["q", "k", "o"]
    flat = ["layers.0.wq.weight", "layers.0.wo.weight", "layers.0.w1.weight", "output.weight"]
    assert [one.name for one in parts_of(flat).values()] == ["q", "o", "up", "head"]


@pytest.mark.parametrize("third", ["proj", "fc_3"])
def test_of_three_numbered_projections_the_first_is_the_gate(third):
    fused = "h.0.attn.attn.weight"
    names = [fused, *(f"h.0.mlp.{one}.weight" for one in ("fc_1", "fc_2", third))]
    assert [one.name for one in parts_of(names).values()] == ["qkv", "gate", "up", "down"]


def test_of_two_numbered_projections_the_first_is_no_gate():
    names = [f"h.0.{one}.weight" for one in ("qkv", "proj", "fc1", "fc2")]
    assert [one.name for one in parts_of(names).values()] == ["qkv", "o", "up", "down"]
