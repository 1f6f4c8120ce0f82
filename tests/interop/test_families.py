"""Families of transformers: the same logits here, and the same tensors on the way back."""

import dataclasses
import json
import re
from pathlib import Path

import foreign
import pytest
import torch

from attnlab import config
from attnlab.attention.rotary_scaling import Llama3, Yarn
from attnlab.interop import reading
from attnlab.interop.families.catalogue import FAMILIES, choose, family_of
from attnlab.interop.families.family import meaning
from attnlab.interop.fields import HARMLESS, Unsupported
from attnlab.interop.weights import to_theirs
from attnlab.models.transformer import TransformerSettings
from attnlab.training.weights import load_weights

pytestmark = foreign.needs_transformers


def ours_of(read):
    model = read.settings.build().double().eval()
    load_weights(model, read.weights)
    return model


@pytest.mark.parametrize("name", foreign.MODELS)
def test_a_model_gives_the_same_logits_here_and_its_tensors_go_back(name, tmp_path):
    theirs = foreign.build(name)
    read = reading.read(foreign.save(theirs, tmp_path))
    ours, given = ours_of(read), foreign.tokens()
    wanted = foreign.logits(theirs, given)
    with torch.no_grad():
        found = ours(given)
    # float64, sums in another order
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))
    there = dict(theirs.state_dict())
    back = dict(to_theirs(read.family, read.settings, dict(ours.named_parameters())))
    for key, tensor in back.items():
        key = key.replace("embed_out", "lm_head")
        assert torch.equal(tensor, there[key]), key


@pytest.mark.parametrize("name", foreign.MODELS)
def test_a_config_is_read_as_it_was_written(name):
    plain = foreign.build(name).config.to_dict()
    family = family_of(plain)
    settings = family.settings(plain)
    again = family.settings(family.config(settings))
    assert meaning(again) == meaning(settings)


def test_every_family_has_a_model_here():
    assert {name.split()[0].strip(",") for name in foreign.MODELS} | {"attnlab"} == {
        name.removesuffix("_text") for name in FAMILIES
    }


def small(*words):
    base = TransformerSettings(
        vocabulary=31, context=64, width=24, depth=3, norm="rms", feedforward="swiglu"
    )
    return config.override(base, words)


GEMMA3 = ["norm_offset=true", "embedding_scale=4.898979485566356", "feedforward=geglu"]
GEMMA3 += ["norm_place=both", "norm_heads=true", "head_gains=true"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], "llama"),
        (["norm=unit", "attention=grouped", "tied=false", "bias=true"], "llama"),
        (["positions.layout=interleaved", "attention=multi-query"], "llama"),
        (["window=9"], "mistral"),
        (["window=9,none"], "ministral"),
        (["qkv_bias=true", "window=9,9,none"], "attnlab"),  # see below
        (["norm_heads=true"], "qwen3"),
        (["norm_heads=true", "head_gains=true", "window=9,none", "norm=unit"], "qwen3"),
        (["positions.base=10000,none,10000"], "smollm3"),
        (
            ["norm_offset=true", "embedding_scale=4.898979485566356", "feedforward=geglu"],
            "gemma",
        ),
        (["norm=layer", "bias=true", "feedforward=gelu-tanh", "positions=learned"], "gpt2"),
        (["norm=layer", "bias=true", "feedforward=gelu", "parallel=true"], "gpt_neox"),
        (
            ["norm=layer", "bias=true", "feedforward=gelu-tanh", "attention=grouped", "window=7"],
            "starcoder2",
        ),
        (["feedforward=squared-relu"], "attnlab"),
        (["positions=alibi"], "attnlab"),
        (["soft_cap=5"], "attnlab"),
        (["sink=learned"], "attnlab"),
        (["window=9,5"], "attnlab"),
        (["score=additive"], "attnlab"),
        (["norm_place=after"], "attnlab"),
        (["positions.fraction=0.7"], "phi3"),  # the others turn whole heads
        (["positions.fraction=0.5"], "attnlab"),  # 3 of 6 coordinates: a pair here, and two there
        (GEMMA3, "gemma3_text"),
        ([*GEMMA3, "soft_cap=3"], "attnlab"),  # caps are not applied there
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_settings_are_exported_as_the_plainest_architecture_that_is_the_same(words, kind):
    family, plain = choose(small(*words))
    assert family.model_type == plain["model_type"] == kind


def test_a_family_whose_tokenizer_is_fixed_is_for_models_that_have_it():
    """AutoTokenizer would load another than ours, with other ids."""
    from transformers.models.auto import tokenization_auto

    settings = small("qkv_bias=true", "window=9,9,none")
    assert choose(settings, our_tokenizer=False)[0].model_type == "qwen2"
    fixed = {
        name
        for name in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        if tokenization_auto.TOKENIZER_MAPPING_NAMES.get(name) != "TokenizersBackend"
    }
    assert {name for name, one in FAMILIES.items() if one.only_its_tokenizer} == fixed & set(
        FAMILIES
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["attention=latent", "norm_heads=false"], "attention is latent, which the modelling file"),
        (["positions=t5"], "positions is t5, which the modelling file does not have"),
    ],
)
def test_what_no_architecture_holds_is_refused_with_the_setting(words, reason):
    with pytest.raises(Unsupported, match=reason):
        choose(small(*words))


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("llama", ["soft_cap=5"], "soft_cap is 5.0, and a llama model of this kind has none"),
        ("llama", ["window=9"], r"window is \[9, 9, 9\], and a llama"),
        ("mistral", ["window=9,none"], "window is"),
        ("llama", ["positions.sections=1,1,1"], r"^positions.sections is \(1, 1, 1\), and a"),
        ("gpt2", [], "feedforward is swiglu, and gelu or gelu-tanh there"),
        ("gemma", [], "norm_offset is False|embedding_scale is none|feedforward is swiglu"),
    ],
)
def test_a_family_says_what_it_has_not(kind, words, reason):
    with pytest.raises(Unsupported, match=reason):
        FAMILIES[kind].config(small(*words))


def test_settings_that_are_the_same_function_mean_the_same():
    plain = small()
    assert meaning(plain) == meaning(dataclasses.replace(plain, dropout=0.3, initial="flat"))
    assert meaning(plain) == meaning(small("norm=unit", "window=none,none"))
    assert meaning(plain) == meaning(small("attention=grouped", "attention.kv_heads=4"))
    for words in (["bias=true"], ["window=9"], ["positions.base=500"], ["norm_epsilon=1e-3"]):
        assert meaning(plain) != meaning(small(*words))
    blocks = small("positions.sections=1,1,1")
    turns = small("positions.sections=1,1,1", "positions.alternate=true")
    assert len({str(meaning(one)) for one in (plain, blocks, turns)}) == 3


OLD = {  # as versions 3 and 4 wrote them
    "model_type": "llama",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 31,
    "rope_theta": 500.0,
}


def test_configs_of_older_versions_are_read():
    llama = FAMILIES["llama"].settings(OLD | {"rope_scaling": None})
    assert llama.positions.base == 500.0 and llama.norm_epsilon == 1e-6
    scaling = {"type": "linear", "factor": 4.0}
    assert FAMILIES["llama"].settings(OLD | {"rope_scaling": scaling}).positions.scaling.factor == 4
    three = {name: value for name, value in foreign.LLAMA3.items() if name != "rope_theta"}
    assert FAMILIES["llama"].settings(OLD | {"rope_scaling": three}).positions.scaling == Llama3(
        factor=4.0, original=16
    )
    yarn = FAMILIES["llama"].settings(
        OLD | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "max_position_embeddings": 64}
    )
    assert yarn.positions.scaling == Yarn(factor=2.0, original=64)
    neox = FAMILIES["gpt_neox"].settings(
        {**OLD, "model_type": "gpt_neox", "rotary_pct": 0.7, "rotary_emb_base": 300}
        | {"rope_theta": None}
    )
    assert (neox.positions.fraction, neox.positions.base) == (0.7, 300.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; attnlab reads llama, mistral"),
        ({"model_type": "x", "auto_map": {}}, "code in the folder is not run"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu' in this llama model; attnlab has silu"),
        ({"attention_bias": True}, "attention_bias is True .* mlp_bias is False"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "mscales": 2}},
            "rope_parameters.mscales is 2",
        ),
        ({"hidden_size": "many"}, "hidden_size is 'many'; it is a whole number from 1"),
        ({"hidden_size": 25}, "num_attention_heads is 4 .* a width of 25 is no multiple"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3 .* do not divide"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; it is a number"),
        ({"router_jitter": 0.1}, "router_jitter is 0.1 .* does not know this field"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size is None"),
        # a field that nobody knows may mean something when it is off
        ({"new_thing": False}, "new_thing is False .* does not know this field"),
        ({"new_thing": None}, "new_thing is None .* does not know this field"),
        ({"new_thing": []}, "does not know this field"),
        ({"is_causal": False}, "is_causal is False in this llama model; attnlab reads true only"),
        ({"is_causal": None}, "is_causal is None"),
        ({"is_causal": 1}, "is_causal is 1"),
        ({"sliding_window": 5}, "sliding_window is 5 .* reads null only"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "turns whole heads"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"type": "linear"}},
            "rope_scaling is .* rope_parameters stands beside it",
        ),
        # each was a TypeError
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2'; it is a whole number"),
        ({"head_dim": {}}, "head_dim is {}; it is a whole number"),
        ({"rope_theta": [1]}, r"rope_theta is \[1\] .* it is a number"),
        ({"rope_scaling": {"rope_type": ["a"]}}, r"rope_type is \['a'\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": [2]}}, r"factor is \[2\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 1}}, "truncate is 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters: .*factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear scaling needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "needs low_freq_factor"),
        ({"model_type": "mistral", "sliding_window": "all"}, "sliding_window is 'all'"),
        ({"model_type": "qwen2", "layer_types": "x"}, "layer_types is 'x' .* a list"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "no_rope_layers is 2"),
        # a list of so many layers would take all memory
        ({"model_type": "qwen2", "num_hidden_layers": 10**12}, "it is at most 4,096"),
        ({"model_type": "gpt_neox", "rotary_pct": 0.5}, "3 of 6 coordinates turn"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}},
            "Phi-3 has no such scaling",
        ),
        (
            {"model_type": "gemma3_text", "head_dim": 6, "attn_logit_softcapping": 3.0},
            "attn_logit_softcapping is 3.0 .* caps no scores",
        ),
        (
            {"model_type": "gemma2", "head_dim": 6, "query_pre_attn_scalar": 0},
            "query_pre_attn_scalar is 0.0 .* divided by its root",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_field_and_value(fields, said):
    plain = OLD | fields
    with pytest.raises(ValueError, match=said):
        family_of(plain).settings(plain)


def test_fields_that_mean_nothing_or_what_is_so_anyway_are_read_over():
    plain = {"is_causal": True, "top_k": 50, "use_sliding_window": False, "sliding_window": None}
    FAMILIES["llama"].settings(OLD | plain | {"use_cache": False, "partial_rotary_factor": 1})


def named_by(code):
    """Every name by which a file of Python asks a config for something."""
    asked = r"config\.(\w+)|[cC]onfig, \"(\w+)\"|kwargs\.(?:get|pop)\(\"(\w+)\""
    return {name for found in re.findall(asked, code) for name in found if name}


def test_no_field_called_harmless_is_asked_for_on_the_way_to_a_logit():
    """By the code of the installed transformers, so that a new version is looked at again."""
    import transformers

    root = Path(transformers.__file__).parent
    folders = {"gemma3_text": "gemma3", "attnlab": None}
    models = [folders.get(name, name) for name in FAMILIES]
    code = [*(f"models/{one}/modeling_{one}.py" for one in models if one), "masking_utils.py"]
    code += ["cache_utils.py", "modeling_rope_utils.py", "modeling_layers.py"]
    asked = set().union(*(named_by((root / one).read_text()) for one in code))
    assert {"hidden_size", "is_causal", "layer_types", "sliding_window"} <= asked  # it finds some
    known = {
        *("_attn_implementation", "initializer_range", "pad_token_id", "use_cache", "num_labels"),
        *("attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "embedding_dropout"),
        *("residual_dropout", "classifier_dropout", "problem_type", "is_decoder"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "output_attentions", "output_hidden_states"),
        *("dtype", "name_or_path"),
    }  # names, the dropout of training, memory, other outputs, classifiers
    assert asked & HARMLESS <= known


def logits_of_both(name, place, **fields):
    """Of a folder whose config says something else, or `LEFT_OUT`: theirs and ours."""
    import transformers

    from attnlab.audit.hf.running import in_float64

    foreign.save(foreign.build(name), place)
    plain = json.loads((place / "config.json").read_text()) | fields
    plain = {name: value for name, value in plain.items() if value != LEFT_OUT}
    (place / "config.json").write_text(json.dumps(plain))
    given = foreign.tokens()
    with torch.no_grad(), in_float64():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float64, attn_implementation="eager"
        )
        wanted = theirs.eval()(given).logits
    with torch.no_grad():
        return wanted, ours_of(reading.read(place))(given)


LEFT_OUT = "left out"
BARE = {"rope_parameters": LEFT_OUT}
SHORT = {"rope_type": "yarn", "factor": 2.0}
MSCALES = foreign.YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("smollm3", BARE),  # 2,000,000 there
        ("mistral", BARE),
        ("gemma3", BARE),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.4}}),
        ("phi3", {"rms_norm_eps": LEFT_OUT}),  # 1e-5 there
        ("smollm3", {"tie_word_embeddings": LEFT_OUT}),
        ("smollm3", {"no_rope_layers": [0, 0, 0]}),
        ("mistral", {"max_position_embeddings": LEFT_OUT, "rope_parameters": SHORT}),
        ("gemma3", {"layer_types": LEFT_OUT, "_sliding_window_pattern": 2}),
        ("gemma3", {"layer_types": LEFT_OUT, "sliding_window_pattern": 2}),
        ("llama", {"rope_parameters": MSCALES}),
        ("llama", {"rope_parameters": MSCALES | {"attention_factor": 1.5}}),
        ("llama", {"rope_parameters": MSCALES | {"mscale": 0}}),
        ("llama", {"rope_parameters": foreign.LLAMA3, "original_max_position_embeddings": 32}),
        ("llama", {**BARE, "rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("llama", {"rope_scaling": {}}),
        ("llama", {"temperature": 0.1, "top_k": 2, "use_cache": False}),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_config_says_or_leaves_out_means_here_what_it_means_there(name, fields, tmp_path):
    wanted, found = logits_of_both(name, tmp_path, **fields)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))
