"""A stage: code made afresh and called as the audit called it, here and in a script without us.

How the code is called is recorded from the subject and put into words: `code(x, mask=~padding)`.
Weights and inputs follow from seeds of torch alone, so a script makes the same ones.

Axes: b batch, t time, e width of the outputs, h heads, g key/value heads, d head width.
"""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.adapters import HEADS, KV_HEADS, NEW_CACHE
from attnlab.audit.load import from_file
from attnlab.audit.subject import Attention, Subject, Tokens, Vectors

# What follows is printed into scripts (PRINTED), so it knows torch and nothing of this package.


def loaded(folder: Path, words: list[str], file: str, name: str, options: dict[str, Any]) -> Any:
    """What the file calls so; a class or a maker is called with the options."""
    places = [Path(words[0])] if words else [folder / Path(file).name, Path(file)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        print(f"no file {places[-1]}; give its path on the command line")
        sys.exit(2)
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        print(f"{path} has no {name}")
        sys.exit(2)
    if isinstance(found, torch.nn.Module):
        return found
    parameters = [] if isinstance(found, type) else list(inspect.signature(found).parameters)
    is_attention = [one[:1].lower() for one in parameters[:3]] == ["q", "k", "v"]
    return found if is_attention else found(**options)


def prepared(code: Any, dtype: torch.dtype) -> Any:
    """In evaluation mode, and with no weight at 0: a closed gate would hide what is behind it."""
    code.eval().to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in code.parameters():
            fixed = not one.requires_grad  # such as a table of sines
            if not fixed and one.is_floating_point() and one.numel():
                noise = torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)
                size = float(one.std()) if one.numel() > 1 else 0.0
                fan = one.shape[-1] if one.dim() > 1 else 16
                one.add_(noise, alpha=0.2 * size if size > 1e-4 else 0.5 / fan**0.5)
    return code


def drawn(shape: tuple[int, ...], tokens: int | None, seed: int, dtype: torch.dtype) -> Any:
    """Inputs of a seed: tokens, or vectors."""
    generator = torch.Generator().manual_seed(seed)
    if tokens is not None:
        return torch.randint(tokens, shape[:2], generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def tensor_in(found: Any) -> Any:
    """The outputs, of a tensor, a tuple or something with logits."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(found, name, None), torch.Tensor):
            return getattr(found, name)
    if isinstance(found, torch.Tensor):
        return found
    values = list(found.values() if isinstance(found, dict) else found)
    return next(value for value in values if isinstance(value, torch.Tensor))


def moved(one: Any, other: Any) -> Any:
    """By row and position [b, t]: the largest change; infinite where there is no number."""
    same = (one == other) | (one.isnan() & other.isnan())
    change = (one.double() - other.double()).abs().masked_fill(same, 0).flatten(2).amax(-1)
    return torch.nan_to_num(change, nan=float("inf"))


def replaced(x: Any, other: Any, first: int, last: int) -> Any:
    """x with other inputs from first to last."""
    changed, at = x.clone(), slice(first, last + 1)
    if x.is_floating_point():
        changed[:, at] = other[:, at]
    else:  # another token, also where both are the same
        count = int(torch.maximum(x.max(), other.max())) + 1
        same = other[:, at] == x[:, at]
        changed[:, at] = torch.where(same, (x[:, at] + 1) % count, other[:, at])
    return changed


PRINTED = (loaded, prepared, drawn, tensor_in, moved, replaced)

# What an argument may be, as a script would write it.
_BAND = "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)"
EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "x": lambda given: given.x,
    "q": lambda given: given.q,
    "k": lambda given: given.k,
    "v": lambda given: given.v,
    "cache[0]": lambda given: given.cache[0],
    "padding": lambda given: given.padding,
    "~padding": lambda given: ~given.padding,
    "(~padding).long()": lambda given: (~given.padding).long(),
    "(~padding).to(x.dtype)": lambda given: (~given.padding).to(given.x.dtype),
    "padding[:, None, None]": lambda given: given.padding[:, None, None],
    "~padding[:, None, None]": lambda given: ~given.padding[:, None, None],
    "(~padding).cumsum(1).sub(1).clamp(min=0)": lambda given: (
        (~given.padding).cumsum(1).sub(1).clamp(min=0)
    ),
    "torch.ones_like(padding)": lambda given: torch.ones_like(given.padding),
    "torch.arange(x.shape[1])": lambda given: torch.arange(given.x.shape[1]),
    "torch.arange(x.shape[1])[None]": lambda given: torch.arange(given.x.shape[1])[None],
    "torch.arange(x.shape[1]).expand(x.shape[0], -1)": lambda given: torch.arange(
        given.x.shape[1]
    ).expand(given.x.shape[0], -1),
    f"{_BAND}.tril()": lambda given: _square(given.x).tril(),
    f"{_BAND}.triu(1)": lambda given: _square(given.x).triu(1),
    f"{_BAND}": lambda given: _square(given.x),
}


def _square(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)


@dataclass(frozen=True)
class Word:
    """An argument: one of the expressions, or a constant."""

    text: str
    constant: Any = None

    def value(self, given: Any) -> Any:
        return EXPRESSIONS[self.text](given) if self.text in EXPRESSIONS else self.constant


@dataclass(frozen=True)
class Call:
    """How code is called."""

    positional: tuple[Word, ...] = ()
    named: Mapping[str, Word] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [word.text for word in self.positional]
        words += [f"{name}={word.text}" for name, word in self.named.items()]
        return f"code({', '.join(words)})"

    def made(self, code: Any, given: Any) -> Any:
        positional = [word.value(given) for word in self.positional]
        return code(*positional, **{name: word.value(given) for name, word in self.named.items()})


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What a script says of the code, and how it makes it."""

    title: str
    usage: str
    needs: str
    constants: str
    making: str
    printed: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    target: str
    options: Mapping[str, Any]
    code: Any
    dtype: torch.dtype
    width: int
    tokens: bool = False
    heads: tuple[int, int, int] | None = None  # (h, g, d) of code that takes q, k and v
    asking: Call | None = None  # None: the code is a Subject itself, and is asked as one
    padded: Call | None = None
    stepping: Call | None = None
    maker: str = ""  # of a cache: the name of a method
    otherwise: Mapping[str, Any] = field(default_factory=dict)  # named so, it computes another way
    decorators: tuple[str, ...] = ("@torch.no_grad()",)  # of what calls it in a script

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        if self.asking is None:
            return self.code.draw(batch, length, seed)  # type: ignore[no-any-return]
        tokens = self.width if self.tokens else None
        shape = (batch, length, self.width)
        return drawn(shape, tokens, seed, self.dtype)  # type: ignore[no-any-return]

    def ask(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            if self.asking is None:
                return self.code.run(x, padding=padding)  # type: ignore[no-any-return]
            call = self.asking if padding is None else self.padded
            assert call is not None
            out = tensor_in(self._made(call, self.code, self._given(x, padding=padding)))
            return (out.transpose(1, 2) if self.heads else out).flatten(2)  # type: ignore[no-any-return]

    def other(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Computed in the other way that the code has."""
        call = self.asking if padding is None else self.padded
        assert call is not None
        return self._told(call, self._given(x, padding=padding), self.otherwise)

    def tell(self, x: Tensor, **given: Any) -> Tensor:
        """With more that is named."""
        assert self.asking is not None
        return self._told(self.asking, self._given(x), given)

    def _told(self, call: Call, given: Any, more: Mapping[str, Any]) -> Tensor:
        with torch.no_grad():
            out = tensor_in(self._made(call, partial(self.code, **more), given))
            return (out.transpose(1, 2) if self.heads else out).flatten(2)  # type: ignore[no-any-return]

    def _made(self, call: Call, code: Any, given: Any) -> Any:
        return call.made(code, given)

    def tools(self, fails: Callable[..., Any]) -> list[Any]:
        """What a comparison takes first, in its order."""
        return [getattr(self, name) for name in tools_of(fails)]

    def new_cache(self) -> Any:
        if self.asking is None:
            return self.code.new_cache()
        return [getattr(self.code, self.maker)()]

    def step(self, x: Tensor, cache: Any) -> Tensor:
        with torch.no_grad():
            if self.asking is None:
                return self.code.step(x, cache)  # type: ignore[no-any-return]
            assert self.stepping is not None
            found = self.stepping.made(self.code, self._given(x, cache=cache))
            if isinstance(found, tuple) and len(found) > 1 and not isinstance(found[1], Tensor):
                cache[0] = found[1]
            return tensor_in(found).flatten(2)  # type: ignore[no-any-return]

    def _given(self, x: Tensor, **others: Any) -> SimpleNamespace:
        given = SimpleNamespace(x=x, **others)
        if self.heads:
            h, g, d = self.heads
            parts = x.unflatten(-1, (-1, d)).transpose(1, 2)
            given.q, given.k, given.v = parts.split([h, g, g], dim=1)
        return given

    def ways(self, finding: str, tolerance: float) -> "Iterator[tuple[Stage, float]]":
        """Where to look for a failure, and what rounding explains there."""
        yield self, tolerance

    def as_met(self, met: Mapping[str, Any]) -> "Stage":
        """As the audit met a failure, not as it began."""
        if self.heads and "kv_heads" in met:
            return self.with_heads((met["heads"], met["kv_heads"], self.heads[2]))
        return self

    def again(self) -> "Stage":
        """With the code as it is before its first call."""
        return replace(self, code=_fresh(self.target, self.options, self.dtype))

    def head_counts(self) -> dict[str, int]:
        if self.heads is None:
            return {}
        return {"heads": self.heads[0], "kv_heads": self.heads[1], "head_width": self.heads[2]}

    def with_less(self, names: Sequence[str], less: int, wide: bool) -> "Stage | None":
        """The same code made with fewer heads, layers or inputs; None where it does not say how."""
        if self.heads and not isinstance(self.code, nn.Module):
            h, g, d = self.heads
            if names is HEADS and less < h:
                return self.with_heads((less, max(1, g * less // h), d))
            return self.with_heads((h, less, d)) if names is KV_HEADS and less < g else None
        known = {**_defaults(type(self.code)), **self.options}
        name = next((one for one in names if type(known.get(one)) is int), None)
        if name is None or less >= known[name] or (wide and known[name] != self.width):
            return None
        options = {**self.options, name: less}
        stage = replace(self, options=options, code=_fresh(self.target, options, self.dtype))
        if self.heads and names in (HEADS, KV_HEADS):
            h, g, d = self.heads
            return stage.with_heads((less, g, d) if names is HEADS else (h, less, d))
        return replace(stage, width=less) if wide else stage

    def with_heads(self, heads: tuple[int, int, int]) -> "Stage":
        return replace(self, heads=heads, width=(heads[0] + 2 * heads[1]) * heads[2])

    def heading(self, tools: Sequence[str]) -> Heading:
        path, _, name = self.target.rpartition(":")
        file = Path(path).name
        constants = f"FILE = {path!r}  # as it was given; one beside this script comes first\n"
        constants += f"NAME = {name!r}\nOPTIONS: dict[str, Any] = {dict(self.options)!r}"
        return Heading(
            title=f"{name} in {file}",
            usage=f"[path of {file}]",
            needs="torch only",
            constants=constants,
            making="code = loaded(Path(__file__).parent, sys.argv[1:], FILE, NAME, OPTIONS)",
            printed=PRINTED,
        )

    def text(self, tools: Sequence[str]) -> str:
        """The same in a script, where the code is called `code`."""
        if self.asking is None:
            lines = ["draw = code.draw", "", ""]
            lines += ["def ask(x: Any, padding: Any = None) -> Any:", "    with torch.no_grad():"]
            lines += ["        return code.run(x, padding=padding)", "", ""]
            lines += ["step, new_cache = code.step, code.new_cache"] if "step" in tools else []
            return "\n".join(lines)
        tokens = str(self.width) if self.tokens else "None"
        lines = [f"prepared(code, {self.dtype})"] if isinstance(self.code, nn.Module) else []
        lines += [f"heads = {self.heads}  # of queries, of keys, and their width"] * bool(
            self.heads
        )
        lines += ["heads = None"] if "heads" in tools and not self.heads else []
        lines += ["", "", "def draw(batch: int, length: int, seed: int) -> Any:"]
        shape = f"(batch, length, {self.width})"
        lines += [f"    return drawn({shape}, {tokens}, seed, {self.dtype})"]
        lines += self._asking("ask", "")
        lines += self._otherwise() if "other" in tools else []
        lines += self._asking("tell", ", **given") if "tell" in tools else []
        lines += self._stepping() if "step" in tools else []
        return "\n".join(lines)

    def _otherwise(self) -> list[str]:
        more = "".join(f", {name}={value!r}" for name, value in self.otherwise.items())
        return self._asking("other", more)

    def _stepping(self) -> list[str]:
        lines = ["", "", "def new_cache() -> Any:", f"    return [code.{self.maker}()]"]
        lines += ["", "", "@torch.no_grad()", "def step(x: Any, cache: Any) -> Any:"]
        lines += [f"    found = {self.stepping}"]
        lines += ["    if isinstance(found, tuple) and len(found) > 1:"]
        lines += ["        if not isinstance(found[1], torch.Tensor):"]
        lines += ["            cache[0] = found[1]  # code that gives its cache back"]
        return [*lines, "    return tensor_in(found).flatten(2)"]

    def _asking(self, name: str, more: str) -> list[str]:
        """A function of a script that calls the code, with more arguments than usual."""
        takes = "**given: Any" if "given" in more else "padding: Any = None"
        lines = ["", "", *self.decorators, f"def {name}(x: Any, {takes}) -> Any:"]
        if self.heads:
            lines += ["    h, g, d = heads", "    parts = x.unflatten(-1, (-1, d)).transpose(1, 2)"]
            lines += ["    q, k, v = parts.split([h, g, g], dim=1)"]
        usual = str(self.asking).removesuffix(")") + more + ")"
        if "given" in more:
            lines += [f"    found = {usual}"]
        else:
            lines += ["    if padding is None:", f"        found = {usual}"]
            if self.padded is not None:
                padded = str(self.padded).removesuffix(")") + more + ")"
                lines += ["    else:", f"        found = {padded}"]
        turned = ".transpose(1, 2)" if self.heads else ""
        return [*lines, f"    return tensor_in(found){turned}.flatten(2)"]


def tools_of(fails: Callable[..., Any]) -> list[str]:
    takes = inspect.signature(fails).parameters.values()
    return [one.name for one in takes if one.kind is not one.KEYWORD_ONLY]


def for_subject(subject: Subject, target: str, options: Mapping[str, Any]) -> Stage:
    """The stage for what the audit had as this subject."""
    if target.startswith("hf:"):
        from attnlab.audit.hf_stage import for_model

        return for_model(subject, target, options)
    if not Path(target.rpartition(":")[0]).is_file():
        raise ValueError(f"{target} is not in a file of its own; a script needs one")
    code = _fresh(target, options, subject.dtype)
    common = {"target": target, "options": options, "code": code, "dtype": subject.dtype}
    if isinstance(code, Subject):
        return Stage(**common, width=0, stepping=Call() if code.caches else None)
    if not isinstance(subject, Vectors):
        raise ValueError(f"{subject.name} is called by an adapter that a script would need")
    facts: dict[str, Any] = {"width": subject.width, "tokens": isinstance(subject, Tokens)}
    if isinstance(subject, Attention):
        assert subject.heads is not None and subject.kv_heads is not None
        facts["heads"] = (subject.heads, subject.kv_heads, subject.head_width)
    if subject.module is None:
        return Stage(**common, **facts, asking=_function_call(subject))
    stage = Stage(**common, **facts, asking=Call())
    x = stage.draw(2, 5, 0)
    facts["asking"] = _recorded(subject.module, stage, lambda: subject.run(x), x=x)
    if subject.pads:
        padding = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
        how = {"padding": padding}
        if subject.placed:  # as the audit does: a text begins at 0 behind its padding
            how["positions"] = (~padding).cumsum(1).sub(1).clamp(min=0)
        facts["padded"] = _recorded(
            subject.module, stage, lambda: subject.run(x, **how), x=x, padding=padding
        )
    if len(subject.backends) > 1:  # the second is the same code, asked with one more word
        ways = list(subject.backends.values())
        first, second = (
            _recorded(subject.module, stage, partial(way.run, x), x=x) for way in ways[:2]
        )
        more = {name: word for name, word in second.named.items() if name not in first.named}
        facts["otherwise"] = {name: word.constant for name, word in more.items()}
    makers = [one for one in NEW_CACHE if callable(getattr(subject.module, one, None))]
    if subject.caches and makers:
        cache = subject.new_cache()
        with torch.no_grad():
            subject.step(x, cache)  # a cache may be None before its first step
        before = list(cache) if isinstance(cache, list) else cache
        facts["stepping"] = _recorded(
            subject.module, stage, lambda: subject.step(x, cache), x=x, cache=before
        )
        facts["maker"] = makers[0]
    return Stage(**common, **facts)


def _fresh(target: str, options: Mapping[str, Any], dtype: torch.dtype) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        code = from_file(target, options)
    return prepared(code, dtype) if isinstance(code, nn.Module) else code


def _defaults(made: type) -> dict[str, Any]:
    try:
        takes = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return {}
    return {name: one.default for name, one in takes.items() if type(one.default) is int}


def _function_call(subject: Vectors) -> Call:
    call = subject._call
    constants = dict(call.keywords) if isinstance(call, partial) else {}
    named = {name: _worded(value, SimpleNamespace()) for name, value in constants.items()}
    return Call((Word("q"), Word("k"), Word("v")), named)


def _recorded(module: nn.Module, stage: Stage, run: Callable[[], Any], **given: Any) -> Call:
    """What the module was given first while something ran."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append((positional, dict(named)))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    if not calls:
        raise ValueError(f"{type(module).__name__} is not called as a module; a script cannot")
    space = stage._given(**given)
    positional, named = calls[0]
    return Call(
        tuple(_worded(value, space) for value in positional),
        {name: _worded(value, space) for name, value in named.items()},
    )


def _worded(value: Any, given: Any) -> Word:
    cache = getattr(given, "cache", None)
    if isinstance(cache, list) and cache and value is cache[0] and value is not None:
        return Word("cache[0]")
    if isinstance(value, float) and not math.isfinite(value):
        return Word(f"float('{value}')", value)
    if isinstance(value, bool | int | float | str | None | torch.dtype):
        return Word(repr(value), value)
    for text, make in EXPRESSIONS.items():
        try:
            wanted = make(given)
        except (AttributeError, TypeError, IndexError):  # of something that is not given
            continue
        if value is wanted or _same(value, wanted):
            return Word(text)
    raise ValueError(f"it is called with a {type(value).__name__} that a script cannot make")


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
