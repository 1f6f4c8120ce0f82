"""Folders in another layout: what was converted and converted back has the same bits."""

import json

import foreign
import pytest
import states
import torch
from safetensors.torch import load_file

from attnlab.attention.heads import Grouped
from attnlab.attention.positions import Rotary
from attnlab.interop import reading
from attnlab.interop.conversion import Conversion
from attnlab.interop.converting import OTHER, convert
from attnlab.interop.exporting import MODELLING
from attnlab.interop.families.own import OWN
from attnlab.interop.folder import FolderError, Tensors
from attnlab.interop.weights import to_ours
from attnlab.models.transformer import TransformerSettings
from attnlab.training.weights import load_weights

ROTARY = ({"rotary": "interleaved"}, {"rotary": "half-split"})
BY_KIND = ({"qkv": "by-kind"}, {"qkv": "separate"})
BY_GROUP = ({"qkv": "by-group"}, {"qkv": "separate"})
REPEATED = ({"kv_heads": 4}, {"kv_heads": 2})
UNTIED = ({"head": "untied"}, {"head": "tied"})
TURNED = ({"matrices": "in-out"}, {"matrices": "out-in"})
ALL = (
    {"rotary": "interleaved", "qkv": "by-group", "kv_heads": 4, "matrices": "in-out"},
    {"rotary": "half-split", "qkv": "separate", "kv_heads": 2, "matrices": "out-in"},
)
WAYS = {"rotary": ROTARY, "by kind": BY_KIND, "by group": BY_GROUP, "repeated": REPEATED}
WAYS |= {"untied": UNTIED, "turned": TURNED, "all": ALL}


def all_of(folder):
    tensors = Tensors(folder)
    return {name: tensors.copy(name) for name in tensors}


def same(one, other):
    """Names, dtypes and every bit."""
    bits = [
        {n: (t.dtype, t.shape, t.view(torch.uint8).tolist()) for n, t in every.items()}
        for every in (one, other)
    ]
    return bits[0] == bits[1]


def there_and_back(tmp_path, source, there, back):
    """The folder between, and the one at the end."""
    convert(source, tmp_path / "there", Conversion(**there))
    convert(tmp_path / "there", tmp_path / "back", Conversion(**back))
    return tmp_path / "there", tmp_path / "back"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("most", [10**9, 3000])
def test_there_and_back_gives_the_same_bits_under_the_same_names(tmp_path, way, dtype, most):
    tied = way == "untied"
    tensors = states.state(dtype=dtype, untied=not tied, norms=True)
    plain = states.config(partial_rotary_factor=1.0, tie_word_embeddings=tied)
    source = states.folder(tmp_path / "source", tensors, plain, most=most)
    between, end = there_and_back(tmp_path, source, *WAYS[way])
    assert not same(all_of(between), tensors)
    assert same(all_of(end), tensors)
    assert json.loads((end / "config.json").read_text()) == plain
    for name, tensor in all_of(between).items():
        assert tensor.dtype == dtype, name
    for place in (between, end):
        assert len(list(place.glob("*.safetensors"))) > 1 or most == 10**9


@pytest.mark.parametrize(("heads", "kv_heads", "head"), [(6, 3, 4), (5, 1, 4), (3, 3, 8)])
@pytest.mark.parametrize("way", ["rotary", "by kind", "by group", "turned"])
def test_it_is_so_of_heads_of_all_kinds(tmp_path, heads, kv_heads, head, way):
    tensors = states.state(heads, kv_heads, head, bias=False)
    source = states.folder(tmp_path / "source", tensors, states.config(heads, kv_heads, head))
    _, end = there_and_back(tmp_path, source, *WAYS[way])
    assert same(all_of(end), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_of_repeated_heads_are_the_heads(tmp_path, dtype):
    tensors = states.state(6, 2, 4, dtype=dtype)  # of three: 1/3 has no end in binary
    source = states.folder(tmp_path / "source", tensors, states.config(6, 2, 4))
    between, end = there_and_back(tmp_path, source, {"kv_heads": 6}, {"kv_heads": 2})
    assert json.loads((between / "config.json").read_text())["num_key_value_heads"] == 6
    assert same(all_of(end), tensors)


def test_a_mean_is_that_of_neighbours_and_is_called_another_function(tmp_path):
    tensors = states.state(4, 4)
    source = states.folder(tmp_path / "source", tensors, states.config(4, 4))
    made = convert(source, tmp_path / "mean", Conversion(kv_heads=2))
    name = "model.layers.1.self_attn.k_proj.weight"
    first = tensors[name].view(2, 2, 6, 24).double().mean(1).float().flatten(0, 1)
    assert all_of(tmp_path / "mean")[name].equal(first)
    assert not made.exact and any("loss was not measured" in one for one in made.said)
    card = (tmp_path / "mean" / "README.md").read_text()
    assert "It is another function" in card and "not measured" in card
    report = json.loads((tmp_path / "mean" / "conversion.json").read_text())
    assert report["exact"] is False and report["loss"] is None
    assert set(report["source_sha256"]) == {"config.json", "model.safetensors"}
    kinds = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
    changed = {f"model.layers.{n}.self_attn.{kind}" for n in range(2) for kind in kinds}
    assert set(report["changed"]) == changed and name in changed


def test_what_is_no_weight_of_attention_is_left_as_it_is(tmp_path):
    tensors = states.state()
    tensors |= {"steps": torch.tensor(7), "model.layers.0.self_attn.bias": torch.ones(3).bool()}
    tensors["nan"] = torch.tensor([float("nan")])
    source = states.folder(tmp_path / "source", tensors, states.config())
    convert(source, tmp_path / "out", Conversion(rotary="interleaved"))
    found = all_of(tmp_path / "out")
    moved = {n for n in tensors if "q_proj" in n or "k_proj" in n}
    still = {name for name in tensors if name not in moved}
    assert set(found) == set(tensors) and moved
    for name in still:
        assert same({"": found[name].reshape(-1)}, {"": tensors[name].reshape(-1)}), name
    assert all(not found[name].equal(tensors[name]) for name in moved)


def test_gains_of_normed_queries_and_keys_turn_with_them(tmp_path):
    tensors = states.state(norms=True)
    source = states.folder(tmp_path / "source", tensors, states.config())
    convert(source, tmp_path / "out", Conversion(rotary="interleaved"))
    for part in "qk":
        name = f"model.layers.1.self_attn.{part}_norm.weight"
        wanted = tensors[name][torch.tensor([0, 3, 1, 4, 2, 5])]
        assert all_of(tmp_path / "out")[name].equal(wanted)


def test_files_are_read_by_the_library_too(tmp_path):
    tensors = states.state() | {"half": torch.ones(3).half(), "flag": torch.tensor([True])}
    source = states.folder(tmp_path / "source", tensors, states.config())
    convert(source, tmp_path / "out", Conversion(qkv="by-kind"))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert same(found, all_of(tmp_path / "out"))
    assert "model.layers.0.self_attn.qkv_proj.bias" in found
    assert found["model.layers.0.self_attn.qkv_proj.weight"].shape == (48, 24)


def test_a_layout_that_the_type_does_not_have_is_recorded_and_not_read(tmp_path):
    source = states.folder(tmp_path / "source", states.state(), states.config())
    made = convert(source, tmp_path / "out", Conversion(rotary="interleaved"))
    assert any("without a word, and would compute another" in one for one in made.said)
    assert "without a word, and" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(FolderError, match="converted to a layout that its model type does not"):
        reading.settings_of(tmp_path / "out")
    with pytest.raises(FolderError, match="its pairs are interleaved already"):
        convert(tmp_path / "out", tmp_path / "again", Conversion(rotary="interleaved"))


def test_beside_the_weights_data_is_copied_and_nothing_else(tmp_path):
    source = states.folder(tmp_path / "source", states.state(), states.config())
    for name in ("tokenizer.json", "vocab.txt", "spiece.model", "chat_template.jinja", "LICENSE"):
        (source / name).write_text(name)
    for name in ("modeling_x.py", "pytorch_model.bin", "parity.json", ".hidden", "x.index.json"):
        (source / name).write_text(name)
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (source / "onnx").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (source / "merges.json").symlink_to(tmp_path / "secret.json")
    made = convert(source, tmp_path / "out", Conversion(qkv="by-kind"))
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {
        *("tokenizer.json", "vocab.txt", "spiece.model", "chat_template.jinja", "LICENSE"),
        *("config.json", "model.safetensors", "README.md", "conversion.json"),
    }
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\nlicense: mit\n---\n# Mine")
    left = " ".join(made.not_copied)
    assert "merges.json: a link" in left and "modeling_x.py" in left and "onnx: a folder" in left


def test_a_file_of_tensors_needs_the_heads_said(tmp_path):
    tensors = states.state(bias=False)
    source = states.folder(tmp_path / "source", tensors) / "model.safetensors"
    with pytest.raises(FolderError, match=r"there is no config.json; give it: heads=8"):
        convert(source, tmp_path / "out", Conversion(rotary="half-split"))
    with pytest.raises(FolderError, match="give it: rotated=6 if all do"):
        convert(source, tmp_path / "out", Conversion(rotary="half-split", heads=4))
    asked = Conversion(rotary="half-split", heads=4, rotated=6)
    assert "no config.json" in " ".join(convert(source, tmp_path / "out", asked).said)
    assert not (tmp_path / "out" / "config.json").exists()
    back = Conversion(rotary="interleaved", heads=4, rotated=6)
    convert(tmp_path / "out", tmp_path / "back", back)
    assert same(all_of(tmp_path / "back"), tensors)


OWN_MOVES = [{"rotary": "half-split"}, {"rotary": "interleaved"}, {"kv_heads": 4}]
OWN_MOVES += [{"head": "untied"}, {"rotary": "half-split", "kv_heads": 4, "head": "untied"}]


@pytest.mark.parametrize("asked", OWN_MOVES)
def test_our_own_type_says_all_in_its_settings_and_is_read_again(tmp_path, asked):
    """What it computes is compared in float64."""
    torch.manual_seed(0)
    settings = TransformerSettings(
        vocabulary=states.WORDS,
        width=32,
        depth=2,
        context=32,
        attention=Grouped(heads=4, kv_heads=2),
        positions=Rotary(layout=OTHER[asked.get("rotary", "half-split")], fraction=0.8),
        norm_heads=True,
        tied=True,
    )
    model = settings.build().double()
    named = {name: one.detach() for name, one in model.named_parameters()}
    source = states.folder(tmp_path / "source", named, OWN.config(settings))
    (source / "modeling_attnlab.py").write_text("another")
    made = convert(source, tmp_path / "out", Conversion(**asked))
    assert made.exact and not made.said and not made.not_copied
    family, found = reading.settings_of(tmp_path / "out")
    again = found.build().double()
    load_weights(again, dict(to_ours(family, found, Tensors(tmp_path / "out"))))
    tokens = torch.randint(states.WORDS, (2, 19))
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-12, atol=1e-12)
    assert found != settings
    code = (tmp_path / "out" / "modeling_attnlab.py").read_bytes()
    assert code == MODELLING.read_bytes(), "ours, whatever lay there"


def drop(name):
    return lambda tensors, plain: tensors.pop(f"model.layers.{name}")


def add(name, *shape):
    return lambda tensors, plain: tensors.update({name: torch.ones(shape)})


def say(**more):
    return lambda tensors, plain: plain.update(more)


Q = "model.layers.0.self_attn.q_proj"
WRONG = [
    (say(num_attention_heads=None), {"rotary": "interleaved"}, "config.json has no heads; give it"),
    (say(num_attention_heads=5), {"rotary": "interleaved"}, "24 rows, no multiple of 5 heads"),
    (say(num_attention_heads=3), {"rotary": "interleaved"}, "heads are 6 and 8 wide"),
    (say(num_key_value_heads=4), {"rotary": "interleaved"}, "2 and 4 key/value heads, by its"),
    (say(num_hidden_layers=3), {"rotary": "interleaved"}, "says 3 layers, and 2 have attention"),
    (say(), {"rotary": "interleaved", "heads": 8}, "heads=8, and its config.json says 4"),
    (say(), {"kv_heads": 3}, "kv_heads=3: 2 key/value heads of 4 query heads become 1, 4"),
    (say(), {"kv_heads": 2}, "it has 2 key/value heads already"),
    (say(), {"qkv": "separate"}, "keys and values are separate already"),
    (say(), {"qkv": "by-kind", "fused": "by-group"}, "q, k and v are separate in it"),
    (say(), {"head": "untied"}, "its head is untied already"),
    (say(), {"head": "tied"}, "tied, its weights would be lost"),
    (say(), {"matrices": "out-in"}, "its matrices are out-in already"),
    (say(model_type="gpt2"), {"rotary": "interleaved"}, "this gpt2 model rotates nothing"),
    (
        say(partial_rotary_factor=0.67),
        {"rotary": "interleaved"},
        "says that 4 of 6 coordinates of a head turn, and the code of a llama model turns all",
    ),
    (
        say(model_type="phi", partial_rotary_factor=0.5),
        {"rotary": "interleaved"},
        "3 coordinates of a head turn; it is",
    ),
    (
        say(model_type="phi", partial_rotary_factor=0.4),
        {"rotary": "interleaved"},
        "2 coordinates of a head turn, which are one pair in both layouts",
    ),
    (say(), {"rotary": "interleaved", "rotated": 4}, "4 and 6 coordinates of a head turn"),
    (say(model_type="phi"), {"rotary": "interleaved"}, "is not known; give it: rotated=6"),
    (say(quantization_config={"bits": 4}), {"kv_heads": 4}, "it is quantized"),
    (drop("1.self_attn.k_proj.weight"), {"rotary": "interleaved"}, "of q, v and none of k"),
    (drop("1.self_attn.k_proj.bias"), {"qkv": "by-kind"}, "no bias of k; in one they are all"),
    (drop("0.self_attn.v_proj.weight"), {"kv_heads": 4}, "layer 0 has a weight of q, k and none"),
    (add(f"{Q}.lora_A", 2, 24), {"qkv": "by-kind"}, "lora_A belongs to a weight that would change"),
    (add("model.layers.0.self_attn.tables", 4, 4), {"rotary": "interleaved"}, "acts on attention"),
    (add("model.layers.0.mlp.router.x", 4, 24), {"matrices": "in-out"}, "it cannot be transposed"),
    (add("model.layers.0.self_attn.qkv_proj.weight", 4, 24), {"qkv": "by-kind"}, "of q, k, v, qkv"),
    (
        add("vision.layers.0.attn.q.weight", 24, 24),
        {"rotary": "interleaved"},
        "seem to be the same",
    ),
    (add("model.layers.2.mamba.x", 24, 24), {"rotary": "interleaved"}, "layer 2 has no queries"),
]


@pytest.mark.parametrize(("spoil", "asked", "said"), WRONG)
def test_what_cannot_be_known_is_refused_and_nothing_is_left(tmp_path, spoil, asked, said):
    tensors, plain = states.state(), states.config()
    spoil(tensors, plain)
    source = states.folder(tmp_path / "source", tensors, plain)
    with pytest.raises(FolderError) as error:
        convert(source, tmp_path / "out", Conversion(**asked))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_weights_that_are_not_finite_are_refused_and_nothing_is_left(tmp_path):
    tensors = states.state()
    tensors[f"{Q}.weight"][3, 3] = float("nan")
    source = states.folder(tmp_path / "source", tensors, states.config())
    with pytest.raises(FolderError, match=r"q_proj.weight holds NaN or Inf"):
        convert(source, tmp_path / "out", Conversion(rotary="interleaved"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_move_that_is_not_undone_writes_nothing(tmp_path, monkeypatch):
    from attnlab.interop import layouts

    source = states.folder(tmp_path / "source", states.state(), states.config())
    monkeypatch.setattr(layouts, "interleaved_to_half_split", lambda rows, *_: rows)
    with pytest.raises(FolderError, match="does not come back bit for bit; nothing is written"):
        convert(source, tmp_path / "out", Conversion(rotary="interleaved"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def logits(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    return foreign.logits(model, foreign.tokens())


# the model, what is converted, and what transformers loads again
LOADED = [
    ("llama", {"kv_heads": 4}),
    ("llama", {"kv_heads": 4, "head": "tied"}),
    ("llama with biases, tied", {"head": "untied"}),
    ("llama with biases, tied", {"kv_heads": 2}),
    ("qwen3", {"kv_heads": 4}),
    ("gemma", {"head": "untied"}),
    ("phi3", {"kv_heads": 4}),
    ("gpt2", {"head": "untied"}),
]


@foreign.needs_transformers
@pytest.mark.parametrize(("name", "asked"), LOADED)
def test_transformers_computes_the_same_from_both(tmp_path, name, asked):
    model = foreign.build(name)
    if asked.get("head") == "tied":
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    source = foreign.save(model, tmp_path / "source", tokenizer=False)
    made = convert(source, tmp_path / "out", Conversion(**asked))
    assert made.exact and not made.said
    torch.testing.assert_close(logits(tmp_path / "out"), logits(source), rtol=1e-11, atol=1e-11)
    assert len(all_of(tmp_path / "out")) - len(all_of(source)) in (-1, 0, 1)


FAILS = "transformers does not load it"
LOADS = "transformers would load it without a word, and would compute another function"
DRAWS = "transformers draws weights at random for queries, keys and values, and warns of it"


@foreign.needs_transformers
@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("llama", {"matrices": "in-out"}, FAILS),
        ("gpt_neox", {"kv_heads": 2}, FAILS),
        ("llama", {"rotary": "interleaved"}, LOADS),
        ("phi3", {"qkv": "by-group"}, LOADS),
        ("gpt_neox", {"qkv": "by-kind"}, LOADS),
        ("llama", {"qkv": "by-kind"}, DRAWS),
        ("gpt2", {"qkv": "separate"}, DRAWS),
    ],
)
def test_what_transformers_does_with_a_layout_that_it_has_not_is_said(tmp_path, name, asked, said):
    source = foreign.save(foreign.build(name), tmp_path / "source", tokenizer=False)
    made = convert(source, tmp_path / "out", Conversion(**asked))
    assert sum(one.startswith(said) for one in made.said) == 1
    assert sum(one.startswith("transformers") for one in made.said) == 1
    if said == FAILS:
        with pytest.raises(RuntimeError):
            logits(tmp_path / "out")
        return
    first, second = (logits(tmp_path / "out") for seed in (1, 2) if torch.manual_seed(seed))
    assert not torch.allclose(first, logits(source))
    assert first.equal(second) is (said == LOADS)


@foreign.needs_transformers
@pytest.mark.parametrize(
    ("name", "there", "back"),
    [
        (
            "gpt2",
            {"matrices": "out-in", "qkv": "separate"},
            {"matrices": "in-out", "qkv": "by-kind"},
        ),
        (
            "gpt_neox",
            {"qkv": "by-kind", "rotary": "interleaved"},
            {"qkv": "by-group", "rotary": "half-split"},
        ),
        ("phi3", {"qkv": "separate"}, {"qkv": "by-kind"}),
        (
            "qwen3",
            {"rotary": "interleaved", "qkv": "by-group"},
            {"rotary": "half-split", "qkv": "separate"},
        ),
    ],
)
def test_models_of_transformers_come_back_bit_for_bit(tmp_path, name, there, back):
    source = foreign.save(foreign.build(name), tmp_path / "source", tokenizer=False)
    between, end = there_and_back(tmp_path, source, there, back)
    assert same(all_of(end), all_of(source))
    assert json.loads((end / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )
    with pytest.raises(FolderError):
        reading.settings_of(between)


@foreign.needs_transformers
def test_a_gpt2_becomes_matrices_that_a_plain_layer_multiplies(tmp_path):
    model = foreign.build("gpt2")
    source = foreign.save(model, tmp_path / "source", tokenizer=False)
    made = convert(source, tmp_path / "out", Conversion(matrices="out-in", qkv="separate"))
    found, x = all_of(tmp_path / "out"), torch.randn(5, 24, dtype=torch.float64)
    attention = model.transformer.h[1].attn
    wanted = attention.c_attn(x).split(24, -1)
    for part, one in zip("qkv", wanted, strict=True):
        name = f"transformer.h.1.attn.{part}_proj"
        mine = torch.nn.functional.linear(x, found[f"{name}.weight"], found[f"{name}.bias"])
        torch.testing.assert_close(mine, one)
    mine = torch.nn.functional.linear(x, found["transformer.h.1.mlp.c_fc.weight"])
    torch.testing.assert_close(mine, x @ model.transformer.h[1].mlp.c_fc.weight)
    assert [one.split(":")[0] for one in made.said] == [
        "transformers does not load it",
        "transformers would compute another function",
    ]
