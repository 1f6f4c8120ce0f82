"""A stage: code made afresh and called as the audit called it, here and in a script without us.

How the code is called is recorded from the subject and put into words (`audit/subject/calls.py`):
`code(x, mask=~padding)`. From these the functions of a script are written, and the same text is run
here. Weights and inputs follow from seeds of torch alone, so a script makes the same ones.

Axes: b batch, t time, e width of the outputs, h heads, g key/value heads, d head width.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import ScriptError, SubjectError, calling
from attnlab.audit.probe import watch as watch_module
from attnlab.audit.probe.tools import label_word, method_of, tool_names
from attnlab.audit.probe.watch import Watch, _Watch
from attnlab.audit.properties.property import Case
from attnlab.audit.repro import prelude
from attnlab.audit.repro.prelude import fill_blocks, prepare, sample
from attnlab.audit.repro.stepping import NEW_CACHE, Stepping, stepping_of
from attnlab.audit.signature import signature
from attnlab.audit.subject import jax_code
from attnlab.audit.subject.adapters import HEADS, KV_HEADS
from attnlab.audit.subject.base import Attention, Subject, Tokens, Vectors
from attnlab.audit.subject.calls import KNOWN, Call, record, takes_by_name
from attnlab.audit.subject.guard import guard_method
from attnlab.audit.subject.jax_code import FlaxModule, adopt, is_from_jax
from attnlab.audit.subject.load import defaults_of, expression, from_file, parts_of
from attnlab.audit.subject.protocols import WithRoom
from attnlab.code.places import Place, place_of

ROWS, LENGTH = 2, 5  # of the inputs with which a call is recorded
GIVEN = "padding: Any = None, positions: Any = None"
METHODS = ("accumulate", "corrupt")
# tools that call the code: what they raise is the code's
CALLS = (
    *("draw", "run", "run_with", "run_on", "run_by", "step", "step_by", "new_cache"),
    *("loss", "loop", *METHODS),
)
TOOLS = {  # what the text of a stage may name
    **KNOWN,
    **{name: one for name, one in vars(prelude).items() if isinstance(one, FunctionType)},
    "Any": Any,
    "copy": copy,
    "partial": partial,
    "_Watch": _Watch,
    "Watch": Watch,
}


@dataclass(frozen=True, kw_only=True)
class Heading:
    """What a script says of the code, and how it makes it."""

    title: str
    usage: str
    needs: str
    constants: str
    making: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    target: str
    options: Mapping[str, Any]
    code: Any
    dtype: torch.dtype
    width: int
    device: str = ""  # on which the code runs; empty: the CPU
    tokens: bool = False
    heads: tuple[int, int, int] | None = None  # (h, g, d) of code that takes q, k and v
    call: Call | None = None  # None: the code is a Subject itself, and is called as one
    padding: Mapping[str, str] | None = None  # arguments that tell of padding; None: it takes none
    positions: Mapping[str, str] | None = None  # likewise, of positions
    # how wide a context is and whether it is tokens, and what it and its padding are given as
    context: tuple[tuple[int, bool], Mapping[str, str], Mapping[str, str]] | None = None
    setup: str = ""  # by which a copy makes room, for code that cannot be called without
    stepping: Stepping | None = None
    backends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by name: arguments
    backend: str = ""  # one of these, with which the usual one is compared
    loss: str = ""  # the method that gives it
    labelled: str = ""  # or the code called with labels
    turned: str = ""  # brings the outputs' axes into the order [b, t, …]
    block: int = 1  # lengths the code takes are multiples of this
    einsums: bool = False  # to be watched as they are written: heads share keys in them
    decorators: tuple[str, ...] = ("@torch.no_grad()", "@seeded()")  # of what calls it in a script

    def tools(self, names: Sequence[str]) -> SimpleNamespace:
        """As a script has them."""
        space = {**self.known(), "code": self.code}
        exec(_compile(self.text(names)), space)
        found = {name: space[name] for name in names}
        calls = {name: guard_method(name, found[name]) for name in CALLS if name in found}
        return SimpleNamespace(**{**found, **calls})

    def known(self) -> dict[str, Any]:
        """What the text of it may name."""
        return TOOLS

    def homes(self) -> list[ModuleType]:
        """Where a script finds what the text of it names."""
        return [prelude, watch_module, sys.modules[Stage.__module__], jax_code]

    def lacks(self, case: Case) -> str:
        """What of a case it has no words for; empty if it can run it."""
        tools = tool_names(case.fails)
        needed = {
            "a cache": ("step" in tools, self.stepping),
            "padding": ("run" in tools and case.sizes.get("side"), self.padding),
            "positions": (case.sizes.get("placed"), self.positions),
            "labels": ("loss" in tools, self.loss or self.labelled or None),
        }
        missing = [name for name, (wanted, how) in needed.items() if wanted and how is None]
        return missing[0] if missing and self.call is not None else ""

    def simpler(self, case: Case) -> "Iterator[tuple[Stage, Case]]":
        """Ways to make the code that a script would tell in fewer lines."""
        return iter(())

    def for_case(self, case: Case) -> "Stage":
        """With the heads, or the other backend, of a case."""
        if case.shape is not None and self.heads is not None:
            return self.with_heads((*case.shape, self.heads[2]))
        return replace(self, backend=case.sizes.get("backend", ""))

    def again(self) -> "Stage":
        """With the code as it is before its first call."""
        return replace(self, code=self._fresh(self.options))

    def _fresh(self, options: Mapping[str, Any]) -> Any:
        return _fresh(self.target, options, self.dtype, self.device)

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
        known = {**defaults_of(self.target, self.options), **self.options}
        name = next((one for one in names if type(known.get(one)) is int), None)
        if name is None or less >= known[name] or (wide and known[name] != self.width):
            return None
        options = {**self.options, name: less}
        stage = replace(self, options=options, code=self._fresh(options))
        if self.heads and names in (HEADS, KV_HEADS):
            h, g, d = self.heads
            return stage.with_heads((less, g, d) if names is HEADS else (h, less, d))
        return replace(stage, width=less) if wide else stage

    def with_heads(self, heads: tuple[int, int, int]) -> "Stage":
        return replace(self, heads=heads, width=(heads[0] + 2 * heads[1]) * heads[2])

    def heading(self, tools: Sequence[str]) -> Heading:
        where, name = parts_of(self.target)
        place = place_of(where)
        file = Path(where).name if place.path is None else place.path.name
        loading, constants = _loading(place)
        made, theirs = expression(self.target, self.options), is_from_jax(self.code)
        making = [loading, f"code = {f'from_jax({made})' if theirs else made}"]
        moved = f".to({self.device!r})" if self.device else ""
        making += [f"prepare(code, {self.dtype}){moved}"] * isinstance(self.code, nn.Module)
        needs = ["torch", *(["jax"] if theirs else []), *([where] if place.path is None else [])]
        return Heading(
            title=f"{name} in {file}",
            usage="" if place.path is None else f"[path of {file}]",
            needs=", and ".join(needs) if len(needs) > 1 else "torch only",
            constants=constants,
            making="\n".join(making),
        )

    def text(self, tools: Sequence[str]) -> str:
        """The tools as a script has them, where the code is called `code`."""
        lines = []
        if "heads" in tools:
            lines += [f"heads = {self.heads}"]
        if "watch" in tools:
            lines += [f"watch = {'None' if self.heads else 'Watch' if self.einsums else '_Watch'}"]
        if "model" in tools:
            lines += [f"model = {self._model()}"]
        lines += [f"{name} = {self._method(name)}" for name in METHODS if name in tools]
        lines += self._calls(tools)
        return "\n".join(lines).lstrip("\n")

    def _model(self) -> str:
        if self.call is None:
            return "code.module"
        return "code" if isinstance(self.code, nn.Module) else "None"

    def _method(self, name: str) -> str:
        return f"code.{name}" if hasattr(self.code, name) else f"code.module.{name}"

    def _calls(self, tools: Sequence[str]) -> list[str]:
        if self.call is None:
            return self._own_calls(tools)
        tokens = str(self.width) if self.tokens else "None"
        shape = f"(batch, length, {self.width})"
        body = [f"return sample({shape}, {tokens}, seed, {self.dtype})"]
        lines = _function("draw(batch: int, length: int, seed: int)", body)
        if "run" in tools or "refusal" in tools:
            lines += self._run(f"run(x: Any, {GIVEN})", {})
        lines += REFUSAL if "refusal" in tools else []
        if "run_plain" in tools:
            module = isinstance(self.code, nn.Module)
            copied = ["plain = copy.deepcopy(code).cpu().to(dtype)" if module else "plain = code"]
            copied += ["x = x.to(dtype) if x.is_floating_point() else x"]
            lines += self._run("run_plain(x: Any, dtype: Any)", {}, copied)
        if "run_with" in tools or "run_on" in tools:
            lines += self._run("run_with(x: Any, **arguments: Any)", None)
        lines += self._contexts() if "run_on" in tools else []
        lines += self._other(tools)
        lines += self._stepping() if "step" in tools else []
        if "loss" in tools:
            lines += _function("loss(x: Any, padding: Any = None)", self._loss(), self.decorators)
        return lines

    def _own_calls(self, tools: Sequence[str]) -> list[str]:
        """Of a Subject, which says itself how it is called."""
        body = ['given = {"padding": padding, "positions": positions}']
        body += ["given = {name: one for name, one in given.items() if one is not None}"]
        lines = ["draw = code.draw"]
        if "run_with" in tools:
            lines += ["run_with = seeded()(torch.no_grad()(code.packed))"]
        if "run" in tools or "refusal" in tools:
            run = [*body, "return code.run(x, **given)"]
            lines += _function(f"run(x: Any, {GIVEN})", run, self.decorators)
        lines += REFUSAL if "refusal" in tools else []
        if "run_by" in tools:
            run = [*body, "return code.backends[backend].run(x, **given)"]
            lines += _function(f"run_by(backend: str, x: Any, {GIVEN})", run, self.decorators)
        if "step" in tools:
            step = ["return code.step(x, cache)"]
            lines += _function(NEW_CACHE, ["return code.new_cache()"])
            lines += _function("step(x: Any, cache: Any)", step, self.decorators)
        if "step_by" in tools:
            step = ["return code.backends[backend].step(x, cache)"]
            lines += _function("step_by(backend: str, x: Any, cache: Any)", step, self.decorators)
        if "loss" in tools:
            lines += _function("loss(x: Any, padding: Any = None)", self._loss(), self.decorators)
        return lines

    def _loss(self) -> list[str]:
        if not self.loss:
            return [f"return {self.labelled}"]
        return [f"return {self.loss}(x) if padding is None else {self.loss}(x, padding=padding)"]

    def _other(self, tools: Sequence[str]) -> list[str]:
        if "run_by" not in tools:
            return []
        return self._run(f"run_by(backend: str, x: Any, {GIVEN})", self.backends[self.backend])

    def _contexts(self) -> list[str]:
        """How the code is given another context."""
        assert self.context is not None
        (width, tokens), texts, masked = self.context
        body = [f"given = {{{_pairs(texts)}}}"]
        body += ["if padding is not None:", f"    given.update({{{_pairs(masked)}}})"] * bool(
            masked
        )
        body += ["return run_with(x, **given)"]
        count = width if tokens else None
        drawn = [f"return sample((batch, length, {width}), {count}, seed, {self.dtype})"]
        return [
            *_function("draw_context(batch: int, length: int, seed: int)", drawn),
            *_function("run_on(x: Any, context: Any, padding: Any = None)", body),
        ]

    def _stepping(self) -> list[str]:
        assert self.stepping is not None
        outputs = f"tensor_in(found){self.turned}.flatten(2)"
        return [
            *_function(NEW_CACHE, self.stepping.new()),
            *_function("step(x: Any, cache: Any)", self.stepping.step(outputs), self.decorators),
        ]

    def _run(
        self, signature: str, more: Mapping[str, str] | None, copied: Sequence[str] = ()
    ) -> list[str]:
        """A function of a script that calls the code: with `more`, or with what it is given.

        `copied` makes a copy that is called instead, where it is.
        """
        assert self.call is not None
        optional = {} if more is None else {**(self.padding or {}), **(self.positions or {})}
        optional = {} if copied else optional
        body, cut = list(copied), ""
        if self.block > 1:
            cut = "[:, :length]"
            body += [
                f"length, x = x.shape[1], fill_blocks(x, {self.block})  # a multiple, as it wants"
            ]
            if self.padding and more is not None:
                body += [
                    f"padding = None if padding is None else fill_blocks(padding, {self.block}, 1)"
                ]
            if self.positions and more is not None:
                body += ["if positions is not None and positions.shape[1] < x.shape[1]:"]
                body += ["    positions = torch.arange(x.shape[1]).expand(len(x), -1)"]
        if self.heads:
            h, g, d = self.heads
            body += [f"parts = x.unflatten(-1, (-1, {d})).transpose(1, 2)"]
            body += [f"q, k, v = parts.split([{h}, {g}, {g}], dim=1)"]
        named = {**self.call.named, **(more or {})}
        usual = {name: word for name, word in named.items() if name not in optional}
        others = {name: word for name, word in named.items() if name in optional}
        if optional:
            start = ", ".join(f'"{name}": {word}' for name, word in others.items())
            body += [f"given: dict[str, Any] = {{{start}}}"]
            for what, arguments in (("padding", self.padding), ("positions", self.positions)):
                if arguments:
                    pairs = ", ".join(f"{name}={word}" for name, word in arguments.items())
                    body += [f"if {what} is not None:", f"    given.update({pairs})"]
        rest = "**given" if optional else ""
        if more is None:  # what is usual may be among the arguments
            start = "".join(f'"{name}": {word}, ' for name, word in usual.items())
            rest, usual = f"**{{{start}**arguments}}", {}
        call = Call(self.call.positional, usual)
        placed = f"partial(call_on, {self.device!r}, code)" if self.device else "code"
        if self.setup:
            placed = "fresh"
            body += ["fresh = copy.deepcopy(code)  # every text has room of its own"]
            body += [self.setup.replace("code.", "fresh.")]
            body += ["fresh.to(next(code.parameters()).dtype)"]
        body += [f"found = {call.text('plain' if copied else placed, more=rest)}"]
        body += [f"return tensor_in(found){self.turned}.flatten(2){cut}"]
        return _function(signature, body, self.decorators)


def _function(signature: str, body: Sequence[str], decorators: Sequence[str] = ()) -> list[str]:
    return ["", "", *decorators, f"def {signature} -> Any:", *(f"    {line}" for line in body)]


def _pairs(texts: Mapping[str, str]) -> str:
    return ", ".join(f'"{name}": {text}' for name, text in texts.items())


REFUSAL = _function(
    "refusal(x: Any)",
    [
        *("try:", "    run(x)"),
        *("except Exception as error:", '    return f"{type(error).__name__}: {error}"'),
        'return ""',
    ],
)


def _loading(place: Place) -> tuple[str, str]:
    """How a script loads the module that holds the code, and the constants it needs for that."""
    if place.path is None:
        return "module = load_module(MODULE)", f"MODULE = {place.module!r}"
    if place.module:
        constants = f"FILE, MODULE = {str(place.path)!r}, {place.module!r}  # as they were given"
        return "module = load_member(sys.argv[1:], FILE, MODULE)", constants
    comment = "as it was given; one beside this script comes first"
    loading = "module = load_file(Path(__file__).parent, sys.argv[1:], FILE)"
    return loading, f"FILE = {str(place.path)!r}  # {comment}"


@lru_cache(maxsize=256)
def _compile(text: str) -> CodeType:
    return compile(text, "<stage>", "exec")


def for_subject(subject: Subject, target: str, options: Mapping[str, Any]) -> Stage:
    """The stage for what the audit had as this subject."""
    if target.startswith("hf:"):
        from attnlab.audit.hf.stage import for_model

        return for_model(subject, target, options)
    if not parts_of(target)[0]:
        raise ScriptError(f"{target} is not in a file of its own; a script needs one")
    code = _fresh(target, options, subject.dtype, subject.device)
    common = {"target": target, "options": options, "code": code, "dtype": subject.dtype}
    common["device"] = subject.device
    if isinstance(code, Subject):
        return Stage(**common, width=0, **_losses(code, code))
    if not isinstance(subject, Vectors):
        raise ScriptError(f"{subject.name} is called by an adapter that a script would need")
    facts: dict[str, Any] = {"width": subject.width, "tokens": isinstance(subject, Tokens)}
    facts["block"] = subject.block
    if isinstance(subject, Attention):
        assert subject.heads is not None and subject.kv_heads is not None
        facts["heads"] = (subject.heads, subject.kv_heads, subject.head_width)
        facts["turned"] = "" if subject.layout == "bthd" else ".transpose(1, 2)"
    else:
        facts["turned"] = ".transpose(0, 1)" if subject.layout == "tbc" else ""
    if subject.module is None:
        assert isinstance(subject, Attention)
        mask = subject.convention.mask  # that a contract may have taken for one for padding
        masked = None if mask is None or not mask.taken else subject.expressions(padded=True)
        call = _function_call(code, subject, options)
        return Stage(**common, **facts, call=call, padding=masked)
    facts.update(_module_calls(subject, subject.module), **_losses(subject, code))
    if "heads" not in facts:
        facts["einsums"] = _writes_einsums(subject)
    return Stage(**common, **facts)


def _losses(subject: Subject, code: object) -> dict[str, Any]:
    """How a script gets the loss, in words."""
    if method_of(subject, "loss") is not None:
        return {"loss": "code.loss" if hasattr(code, "loss") else "code.module.loss"}
    if hasattr(code, "labelled"):
        return {"labelled": "code.labelled(x)"}
    word = label_word(subject)
    return {"labelled": f"scalar_in(code(x, {word}=x))"} if word else {}


def _module_calls(subject: Vectors, module: nn.Module) -> dict[str, Any]:
    """How it is called, and where words can be found for it: with padding, otherwise, in steps."""
    shape = (ROWS, LENGTH, subject.width)
    x = sample(shape, subject.width if isinstance(subject, Tokens) else None, 0, subject.dtype)
    given = {"x": fill_blocks(x, subject.block)}
    if isinstance(subject, Attention):
        given["q"], given["k"], given["v"] = subject.split(given["x"])
    known = subject.expressions(padded=False)
    found: dict[str, Any] = {}
    if isinstance(subject.convention.code, WithRoom):
        found["setup"] = subject.convention.code.decoder.in_dtype(subject.dtype).setup
    found["call"] = first = record(module, lambda: subject.run(x), known, **given)

    def more(run: Callable[[], Any], known: Mapping[str, str], **also: Tensor) -> dict[str, str]:
        """Arguments that are given only while this runs."""
        second = record(module, run, known, **given, **also)
        return {name: word for name, word in second.named.items() if first.named.get(name) != word}

    if subject.pads:
        padding = torch.tensor([[False] * LENGTH, [False] * (LENGTH - 2) + [True] * 2])
        run, masked = partial(subject.run, x, padding=padding), subject.expressions(padded=True)
        with suppress(SubjectError, ScriptError):
            found["padding"] = more(run, masked, padding=fill_blocks(padding, subject.block, True))
    if subject.placed and subject.block == 1:
        places = (torch.arange(LENGTH) + 3).expand(ROWS, -1)
        run = partial(subject.run, x, positions=places)
        with suppress(SubjectError, ScriptError):
            found["positions"] = more(run, known, positions=places)
    convention = subject.convention
    if convention.context is not None:
        masks = convention.context.mask_texts()
        kind = convention.context_width, convention.context_tokens
        found["context"] = kind, convention.context_texts(padded=False), masks
    found["backends"] = {}
    for name, other in list(subject.backends.items())[1:]:  # the same code, with one more argument
        with suppress(SubjectError, ScriptError):
            found["backends"][name] = more(partial(other.run, x), known)
    if subject.caches and subject.decoder is not None and not subject.device:
        for piece in (x, x[:, :1]):  # some take single steps only
            with suppress(SubjectError, ScriptError):
                found["stepping"] = stepping_of(subject.convention, piece, known)
                break
    return found


def _writes_einsums(subject: Vectors) -> bool:
    """Whether heads share keys in an einsum, so that only the einsum shows which."""
    watch = Watch(7)
    with suppress(SubjectError), torch.no_grad(), watch:  # some kernels refuse to be watched
        subject.run(subject.draw(1, watch.length, 0))
    return watch.folds


def _fresh(target: str, options: Mapping[str, Any], dtype: torch.dtype, device: str = "") -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        code = adopt(from_file(target, options), options)
    if isinstance(code, FlaxModule):
        raise ScriptError("it is a module of Flax, which a script cannot call without this package")
    if not isinstance(code, nn.Module):
        return code
    with calling("to"):
        code.eval().to(torch.float64)
    prepare(code, torch.float64)
    with calling("to"):
        return code.to(device=device or None, dtype=dtype)


def _function_call(code: Any, subject: Attention, options: Mapping[str, Any]) -> Call:
    """Of q, k and v in the order of axes that it has."""
    turned = ".transpose(1, 2)" if subject.layout == "bthd" else ""
    takes = list(signature(code).parameters)
    named = {key: repr(value) for key, value in options.items() if key in takes}
    given = tuple(f"{one}{turned}" for one in "qkv")
    if takes_by_name(code):
        return Call(named={**dict(zip(takes, given, strict=False)), **named})
    return Call(given, named)
