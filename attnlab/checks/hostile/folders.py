"""Folders of transformers: config, index, tensors and tokenizer of a model that a stranger made."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attnlab.checks.hostile.escapes import TITLE
from attnlab.checks.hostile.forge import replace
from attnlab.checks.hostile.pickles import torch_zip
from attnlab.checks.hostile.tensors import HEADERS, entry
from attnlab.checks.hostile.trial import (
    EITHER,
    SECRET,
    Act,
    Family,
    Place,
    Plant,
    Trial,
    command,
)

PLAIN = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
WEIGHTS = "model/model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
IMPORT = command("import", "model", "--no-proof", "--runs", "runs")
PROVE = command("import", "model", "--runs", "runs")
GENERATE = command("generate", "model", "--prompt", "Where", "--tokens", "3", "--device", "cpu")
START = command("train", "tiny", "start=model", "steps=1", "device=cpu", "--runs", "runs")
DIFF = command("diff", "model", "model")
EXPORT = command("export", "{run}", "out")
VERBS: dict[str, Act] = {"import": IMPORT, "generate": GENERATE, "start": START, "diff": DIFF}


def good(place: Place, **changed: Any) -> None:
    """A tiny Llama over bytes, as save_pretrained has it."""
    from attnlab.data.tokens import Bytes
    from attnlab.interop import streaming, tokens, weights
    from attnlab.interop.families.llama import LLAMA

    settings = LLAMA.settings(dict(PLAIN))
    torch.manual_seed(0)
    own = dict(settings.build().named_parameters())
    place.write("model/config.json", json.dumps({**PLAIN, **changed}))
    with torch.no_grad():
        streaming.write_tensors(place.folder / "model", weights.to_theirs(LLAMA, settings, own))
    found = tokens.tokenizer_json(Bytes().train([], False))
    place.write("model/tokenizer.json", json.dumps(found))


def with_config(**changed: Any) -> Plant:
    return lambda place: good(place, **changed)


def with_file(name: str, content: str | bytes | Callable[[Place], bytes]) -> Plant:
    """A good folder in which one file holds something else; without its index, if it has none."""

    def plant(place: Place) -> None:
        good(place)
        made = content(place) if callable(content) else content
        if name == INDEX:
            (place.folder / WEIGHTS).unlink()
        place.write(name, made)

    return plant


def with_kind(name: str, kind: str, target: Callable[[Place], Path] = lambda p: p.victim) -> Plant:
    def plant(place: Place) -> None:
        good(place)
        replace(place.folder / name, kind, target(place))

    return plant


def with_index(files: Callable[[Place], Any]) -> Plant:
    return with_file(INDEX, lambda place: json.dumps({"weight_map": files(place)}).encode())


def with_tokenizer(edit: Callable[[dict[str, Any]], Any]) -> Plant:
    def plant(place: Place) -> None:
        good(place)
        path = place.folder / "model/tokenizer.json"
        path.write_text(json.dumps(edit(json.loads(path.read_text()))))

    return plant


def with_code(kind: str, module: str) -> Plant:
    """Python in the folder, which its config asks to be run."""

    def plant(place: Place) -> None:
        classes = {"AutoConfig": f"{module}.Config", "AutoModelForCausalLM": f"{module}.Model"}
        good(place, model_type=kind, auto_map=classes)
        place.write(f"model/{module}.py", f"open({str(place.mark)!r}, 'w').close()\n")

    return plant


def as_pickle(place: Place) -> None:
    good(place)
    (place.folder / WEIGHTS).unlink()
    place.write("model/pytorch_model.bin", torch_zip(place))


def with_name(place: Place) -> None:
    """A tensor whose name commands a terminal."""
    good(place)
    header = {TITLE: entry(0, 8)}
    text = json.dumps(header).encode()
    place.write(WEIGHTS, len(text).to_bytes(8, "little") + text + b"\0" * 8)


def split_by(pattern: str) -> Callable[[dict[str, Any]], Any]:
    """A rule of the tokenizer for where texts are cut: an expression that takes for ever."""
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda found: {**found, "pre_tokenizer": rule}


def out_is(kind: str) -> Plant:
    """The place of an export is something else."""

    def plant(place: Place) -> None:
        replace(place.folder / "out", kind, place.victims)
        assert place.run.exists()

    return plant


def trust_code(place: Place) -> None:
    """As with trust_remote_code: the modelling file is run."""
    for file in (place.folder / "model").glob("*.py"):
        runpy.run_path(str(file))


def trust_index(place: Place) -> None:
    """Reads what the index names, wherever that is, and says what was wrong with it."""
    for name in json.loads((place.folder / INDEX).read_text())["weight_map"].values():
        content = (place.folder / "model" / name).read_bytes()
        print(f"no tensors: {content!r}")


def trust_pattern(place: Place) -> None:
    rules = json.loads((place.folder / "model/tokenizer.json").read_text())["pre_tokenizer"]
    re.match(rules["pattern"]["Regex"], "a" * 200 + "!")


CONFIGS: dict[str, dict[str, Any]] = {
    "a width of 10^12": {"hidden_size": 10**12},
    "a width of 10^400": {"hidden_size": 10**400},
    "a width below zero": {"hidden_size": -16},
    "a width that is a list": {"hidden_size": [16]},
    "a width of NaN": {"hidden_size": float("nan")},
    "10^9 layers": {"num_hidden_layers": 10**9},
    "no heads": {"num_attention_heads": 0},
    "3 heads over a width of 16": {"num_attention_heads": 3},
    "a vocabulary of 10^12": {"vocab_size": 10**12},
    "a context of 10^15": {"max_position_embeddings": 10**15},
    "layers of kinds without end": {"layer_types": ["x"] * 10**6},
    "a rotation of an unknown kind": {"rope_parameters": {"rope_type": "../../x"}},
    "a rotation with a factor of 0": {"rope_scaling": {"type": "linear", "factor": 0}},
    "an epsilon of infinity": {"rms_norm_eps": float("inf")},
    "a type that is an object": {"model_type": {"a": 1}},
}
PATTERN = "(a+)+$"
FAMILY = Family(
    name="folders",
    about="models of transformers by a stranger",
    trials=[
        *(Trial(name=f"weights as a pickle: {verb}", plant=as_pickle, act=act)
          for verb, act in VERBS.items()),
        *(Trial(name=f"a pickle called safetensors: {verb}", plant=with_file(WEIGHTS, torch_zip),
                act=act)
          for verb, act in VERBS.items()),
        *(Trial(name=f"code of an unknown type: {verb}", plant=with_code("evil", "evil"), act=act)
          for verb, act in VERBS.items()),
        *(Trial(name=f"code of a known type: {verb}", plant=with_code("llama", "evil"), act=act,
                codes=EITHER)
          for verb, act in VERBS.items()),
        Trial(name="code in the name of ours", plant=with_code("attnlab", "modeling_attnlab"),
              act=PROVE),
        *(Trial(name=name, plant=with_config(**changed), act=act, codes=EITHER)
          for name, changed in CONFIGS.items()
          for act in (IMPORT,)),
        *(Trial(name=f"tensors: {name}", plant=with_file(WEIGHTS, content), act=IMPORT)
          for name, (content, _) in HEADERS.items()),
        Trial(name="a config nested 100,000 deep",
              plant=with_file("model/config.json", '{"model_type":' * 100_000), act=IMPORT),
        Trial(name="a config that is a list", plant=with_file("model/config.json", "[1]"),
              act=IMPORT),
        Trial(name="a type that commands a terminal", plant=with_config(model_type=TITLE),
              act=IMPORT, terminal=True),
        Trial(name="a tensor's name that commands a terminal", plant=with_name, act=IMPORT,
              terminal=True),
        Trial(name="an index that leads out of the folder",
              plant=with_index(lambda place: {"w": "../victims/precious.txt"}), act=IMPORT),
        Trial(name="an index that names a whole path",
              plant=with_index(lambda place: {"w": str(place.victim)}), act=GENERATE),
        Trial(name="an index of numbers", plant=with_index(lambda place: {"w": 5}), act=IMPORT),
        Trial(name="an index that is no object", plant=with_index(lambda place: ["w"]), act=IMPORT),
        Trial(name="an index of 100,000 files",
              plant=with_index(lambda place: {str(n): f"{n}.safetensors" for n in range(100_000)}),
              act=IMPORT),
        *(Trial(name=f"{name} is a {kind}", plant=with_kind(f"model/{name}", kind), act=act,
                codes=EITHER)
          for name, kind, act in [
              ("model.safetensors", "link", IMPORT),
              ("model.safetensors", "FIFO", IMPORT),
              ("model.safetensors", "folder", GENERATE),
              ("config.json", "FIFO", IMPORT),
              ("config.json", "link", IMPORT),
              ("config.json", "socket", GENERATE),
              ("tokenizer.json", "FIFO", IMPORT),
              ("tokenizer.json", "link", GENERATE),
              ("tokenizer.json", "folder", START),
          ]),
        *(Trial(name=f"{name} without an end",
                plant=with_kind(f"model/{name}", "link", lambda place: Path("/dev/zero")),
                act=IMPORT)
          for name in ("config.json", "tokenizer.json", "model.safetensors")),
        Trial(name="a tokenizer nested 100,000 deep",
              plant=with_file("model/tokenizer.json", "[" * 100_000), act=IMPORT),
        Trial(name="a tokenizer with an expression that takes for ever",
              plant=with_tokenizer(split_by(PATTERN)),
              act=command("generate", "model", "--prompt", "a" * 200 + "!", "--tokens", "2"),
              codes=EITHER),
        Trial(name="a tokenizer with tokens beyond the vocabulary",
              plant=with_tokenizer(lambda found: {**found, "added_tokens": [{
                  "id": 10**9, "content": "Where", "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False, "special": True}]}),
              act=GENERATE),
        Trial(name="a tokenizer of nothing", plant=with_file("model/tokenizer.json", "{}"),
              act=GENERATE),
        *(Trial(name=f"an export to a place that is a {kind}", plant=out_is(kind), act=EXPORT)
          for kind in ("link", "FIFO")),
        Trial(name="code of the folder is run", plant=with_code("llama", "evil"), act=trust_code,
              caught="executed"),
        Trial(name="weights are unpickled", plant=as_pickle,
              act=lambda place: torch.load(
                  place.folder / "model/pytorch_model.bin", weights_only=False),
              caught="executed"),
        Trial(name="an index is believed",
              plant=with_index(lambda place: {"w": "../victims/precious.txt"}), act=trust_index,
              forbidden=SECRET, caught="leaked"),
        Trial(name="an expression is tried", plant=with_tokenizer(split_by(PATTERN)),
              act=trust_pattern, patience=3, caught="hung"),
    ],
)  # fmt: skip
