"""What a parameter is, by its name: queries, an output projection, a norm, of which layer.

Code bases have some dozens of names for the same parts. What no rule knows keeps its own name and
is matched by that, or by its shape where only one is left.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

KINDS = ("weight", "bias")
ATTENTION = re.compile(r"attn|attention|mha|mixer")
FEEDFORWARD = re.compile(r"mlp|ffn?\b|ffwd|feed")
NORM = re.compile(r"norm|^ln|^rms|_ln$|layernorm")
HEAD_NORM = re.compile(r"(q|k|query|key)_?(layer)?(norm|ln)|norm_?(q|k)|ln_?(q|k)")

# the words of a leaf without _ and dots, by part; {w} is filled by each of several spellings
_SPELLED = ("{w}", "w{w}", "to{w}", "{w}proj", "{w}lin", "{w}linear", "linear{w}", "proj{w}")
_ATTENTION = {
    "q": ("q", "query", "queries"),
    "k": ("k", "key", "keys"),
    "v": ("v", "value", "values"),
    "qkv": ("qkv", "querykeyvalue", "in", "attnqkv", "cattn", "attn", "project", "packed"),
    "kv": ("kv", "keyvalue"),
    "o": ("o", "out", "output", "outer", "dense", "cproj", "merge", "proj"),
}
_FEEDFORWARD = {
    "gate": ("gate", "wgate"),
    "up": ("up", "fc1", "cfc", "fc", "fcin", "lin1", "linear1", "1", "in", "densehto4h", "expand"),
    "down": (
        "down",
        "dense4htoh",
        "fc2",
        "cproj",
        "fcout",
        "lin2",
        "linear2",
        "2",
        "out",
        "proj",
        "shrink",
    ),
    "third": ("3",),  # of w1, w2, w3: the shape says which is which
    "gate_up": ("gateup", "12"),
}
_THIRD = ("proj", "cproj", "fc3")  # of fc1, fc2 and one more, this one gives
_GATED = {"fc1": "gate", "fc2": "up", **dict.fromkeys(_THIRD, "down")}
_WHOLE = {
    "embed": (
        *("wte", "embedtokens", "tokemb", "tokenembedding", "tokenembeddings", "embedding"),
        *("embed", "tokembeddings", "wordembeddings", "tokens", "emb", "embedin", "embeddings"),
        *("tokenemb", "te"),
    ),
    "positions": (
        *("wpe", "posemb", "positionembedding", "positionembeddings", "embedpositions"),
        *("positions", "pos", "posembedding", "posembeddings", "positional", "places"),
    ),
    "head": ("lmhead", "head", "output", "unembed", "logits", "outputhead", "embedout", "tologits"),
}


def _words(known: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Parts by each spelling of each of their words."""
    found: dict[str, str] = {}
    for part, words in known.items():
        for word in words:
            for spelled in _SPELLED:
                found.setdefault(spelled.format(w=word), part)
    return found


_ATTENTION_WORDS, _FEEDFORWARD_WORDS = _words(_ATTENTION), _words(_FEEDFORWARD)


class Part(NamedTuple):
    """What a parameter is; `layer` is None outside of layers."""

    layer: int | None
    name: str  # such as q, or the own name of a parameter that no rule knows
    kind: str = "weight"


def parts_of(names: Iterable[str]) -> dict[str, Part]:
    """By the names of parameters, in their order; no two are the same part."""
    names = list(names)
    layers = _layers(names)
    # where queries are, an output is that of attention
    attending = {_parent(one) for one in names if _word(one, False, True) in ("q", "qkv")}
    found: dict[str, Part] = {}
    for name in names:
        kind = "bias" if re.search(r"(^|[._])bias$", name) else "weight"
        beside = _parent(name) in attending
        found[name] = Part(layers[name], _word(name, layers[name] is None, beside) or name, kind)
    found = _number_norms(_with_gates(found))
    counts: dict[Part, int] = {}
    for part in found.values():
        counts[part] = counts.get(part, 0) + 1
    return {  # a name that several have says nothing
        name: part if counts[part] == 1 else Part(part.layer, name, part.kind)
        for name, part in found.items()
    }


def _layers(names: Iterable[str]) -> dict[str, int | None]:
    """The layer of each, counted from 0 in the order of their numbers."""
    first = {
        name: next((int(one) for one in name.split(".") if one.isdigit()), None) for name in names
    }
    order = {
        number: at for at, number in enumerate(sorted({n for n in first.values() if n is not None}))
    }
    return {name: None if number is None else order[number] for name, number in first.items()}


def _parent(name: str) -> str:
    """What holds the module of a parameter; of one without a module, its holder."""
    owner = re.sub(r"[._](weight|bias)$", "", name)
    return owner.rpartition(".")[0]


def _word(name: str, outside: bool, beside: bool) -> str:
    words = [one for one in name.split(".") if not one.isdigit()]
    if words[-1] in KINDS:
        words = words[:-1]
    leaf = re.sub(r"_(weight|bias)$", "", words[-1]) if words else ""
    around = ".".join(words[:-1]).lower()
    flat = leaf.lower().replace("_", "")
    if HEAD_NORM.fullmatch(leaf.lower()):
        return "k_norm" if re.match(r"(norm_?|ln_?)?k", leaf.lower()) else "q_norm"
    if NORM.search(leaf.lower()):
        return "norm"
    whole = next((part for part, known in _WHOLE.items() if flat in known), "")
    if outside and not beside and not ATTENTION.search(around):
        return whole
    if FEEDFORWARD.search(around):
        return _FEEDFORWARD_WORDS.get(flat, "")
    found = _ATTENTION_WORDS.get(flat, "")
    if ATTENTION.search(around):
        return found
    other = _FEEDFORWARD_WORDS.get(flat, "")
    return found or other or (whole if outside else "") if beside else other or found


def _with_gates(found: Mapping[str, Part]) -> dict[str, Part]:
    """Of fc_1, fc_2 and a third beside them, as in LitGPT, the first is the gate."""
    flat = {name: leaf_of(name).lower().replace("_", "") for name in found}
    beside: dict[str, set[str]] = {}
    for name in found:
        beside.setdefault(_parent(name), set()).add(flat[name])
    named = dict(found)
    attending = {_parent(name) for name, one in found.items() if one.name in ("q", "qkv")}
    for name, part in found.items():
        around = beside[_parent(name)]
        if _parent(name) in attending:  # the third may be attention's
            continue
        if {"fc1", "fc2"} <= around and around & set(_THIRD):
            called = _GATED.get(flat[name], part.name)
            named[name] = part._replace(name=called)
    return named


def _number_norms(found: Mapping[str, Part]) -> dict[str, Part]:
    """Norms by their order within their layer: weight and bias of one module are one norm."""
    seen: dict[int | None, list[str]] = {}
    numbered = dict(found)
    for name, part in found.items():
        if part.name == "norm":
            owners = seen.setdefault(part.layer, [])
            owner = re.sub(r"[._](weight|bias)$", "", name)
            if owner not in owners:
                owners.append(owner)
            numbered[name] = part._replace(name=f"norm {owners.index(owner) + 1}")
    return numbered


def leaf_of(name: str) -> str:
    """The own word of a module: q_proj of a.q_proj.weight, in_proj of a.in_proj_weight."""
    return re.sub(r"[._](weight|bias)$", "", name).rpartition(".")[2]


def with_leaf(name: str, leaf: str) -> str:
    """The same name with another word for its module."""
    before = leaf_of(name)
    at = name.rindex(before)
    return name[:at] + leaf + name[at + len(before) :]


def fused_leaf(leaf: str) -> str:
    """q_proj: qkv_proj; query: query_key_value."""
    if re.search("quer(y|ies)", leaf):
        return re.sub("quer(y|ies)", "query_key_value", leaf)
    return leaf.replace("Q", "QKV") if "Q" in leaf else leaf.replace("q", "qkv", 1)


def separate_leaf(part: str, leaf: str) -> str:
    """The inverse of `fused_leaf`; of a word that names no parts: q_proj."""
    if "query_key_value" in leaf:
        word = {"q": "query", "k": "key", "v": "value"}[part]
        return leaf.replace("query_key_value", word)
    if "QKV" in leaf:
        return leaf.replace("QKV", part.upper())
    return leaf.replace("qkv", part) if "qkv" in leaf else f"{part}_proj"
