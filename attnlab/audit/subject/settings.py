"""The object that a constructor takes its settings from: `GPT(config)`.

Its class is the one that the parameter is annotated with, or the code's own `config_class`, or the
one of that kind in the file: a class called like GPTConfig or ModelArgs, or a dataclass. A
`get_default_config()` of the code, or an object of the file that the option names
(`config=SMALL`), is taken as it is and changed. Where there is nothing of the kind, code that
reads `args.dim` gets a namespace of the options, and code that reads `cfg["dim"]` a dict.
"""

import ast
import copy
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from torch import nn

from attnlab import registry
from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError
from attnlab.audit.repro.prelude import fill_settings
from attnlab.audit.signature import annotation_of, signature
from attnlab.audit.subject.reads import read_names
from attnlab.code.places import theirs

# what a parameter of this kind is called, and a class of it
PARAMETER = re.compile(
    r"_?(\w+_)?(config|configuration|cfg|conf|args|arguments|opts?|options|h?params|hps|settings)"
)
ENDING = r"(Config|Configuration|Cfg|Args|Arguments|Options|H?Params|Settings)"
PRETRAINED = ("PretrainedConfig", "PreTrainedConfig")  # of transformers, as spelled over time
DECLARED = {one.name for one in fields(Contract)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`form` says how options become settings: "call" a class, "fill" an object, or a "dict"."""

    parameter: str  # of the code, that takes them
    form: Literal["call", "fill", "dict"]
    base: Any  # the class to call, or the object to start from
    place: str  # the base as a script writes it, where the code's module is `module`

    @property
    def name(self) -> str:
        known = self.base if inspect.isclass(self.base) else type(self.base)
        return self.parameter if known in (dict, SimpleNamespace) else known.__name__

    def split(
        self, options: Mapping[str, Any], takes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options for the settings, and those for the code itself."""
        known, anything = self.names()
        mine = {
            name: value
            for name, value in options.items()
            if name in known or (anything and name not in takes)
        }
        rest = {name: value for name, value in options.items() if name not in mine}
        return mine, {name: value for name, value in rest.items() if name != self.parameter}

    def names(self) -> tuple[set[str], bool]:
        """Names that it has of itself, and whether it takes any other."""
        if self.form == "dict":
            return set(self.base), True
        if self.form == "fill":
            return set(_public(self.base)), True
        if is_dataclass(self.base):
            return {one.name for one in fields(self.base) if one.init}, _is_pretrained(self.base)
        if self.base is SimpleNamespace:  # which does not say so in every Python
            return set(), True
        takes = _parameters(self.base)
        anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
        own = {name for name, one in takes.items() if one.kind is not one.VAR_KEYWORD}
        return own | (set(_public(self.base)) if anything else set()), anything

    def defaults(self) -> dict[str, Any]:
        """What it holds where no option says otherwise, as far as it tells."""
        if self.form == "dict":
            return dict(self.base)
        if self.form == "fill":
            return _public(self.base)
        takes = _parameters(self.base).items()
        said = {name: one.default for name, one in takes if one.default is not one.empty}
        return {**_public(self.base), **said}

    def missing(self, options: Mapping[str, Any]) -> list[str]:
        """Names that its constructor needs and that are not among the options."""
        return required_names(_parameters(self.base), options) if self.form == "call" else []

    def make(self, options: Mapping[str, Any]) -> object:
        if self.form == "dict":
            return {**self.base, **options}
        if self.form == "fill":
            return fill_settings(copy.deepcopy(self.base), **options)
        return self.base(**options)

    def text(self, options: Mapping[str, Any]) -> str:
        """The same as Python."""
        given = [f"{name}={value!r}" for name, value in options.items()]
        if self.form == "dict":
            inside = f"**{self.place}, " if self.place else ""
            return "{" + inside + ", ".join(f"{k!r}: {v!r}" for k, v in options.items()) + "}"
        if self.form == "fill":
            return f"fill_settings({', '.join([self.place, *given])})"
        return f"{self.place}({', '.join(given)})"

    def lack(self, error: BaseException | None, made: Any, factory: Any) -> str:
        """What of the settings some code read in vain, in one line; empty if it was not that.

        What it would read in vain afterwards is named too.
        """
        if error is None:
            return ""
        others = _read_in_vain(error, made)
        key = getattr(error, "name", None) if getattr(error, "obj", None) is made else None
        if isinstance(error, KeyError) and error.args and error.args[0] in others:
            key = error.args[0]
        if not isinstance(key, str) or not key.isidentifier():
            return ""
        name = next(iter(others.values()), self.parameter)
        later = read_names(factory, {name, self.parameter})
        there = made if isinstance(made, dict) else dir(made)
        keys = list(dict.fromkeys([key, *others, *(one for one in later if one not in there)]))
        read = "{}[{!r}]" if isinstance(made, dict) else "{}.{}"
        shown = ", ".join(read.format(name, one) for one in keys)
        return f"it reads {shown}: add {' '.join(f'{one}=…' for one in keys)}"


def settings_for(
    factory: Any, takes: Mapping[str, inspect.Parameter], options: Mapping[str, Any], widths: Any
) -> Settings | None:
    """How the settings are made that some code takes; None if it takes none of that kind."""
    module = sys.modules.get(getattr(factory, "__module__", "") or "")
    open_names = required_names(takes, {})
    strange = [name for name in options if name not in takes]
    for name, parameter in takes.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or name in widths:
            continue
        given = options.get(name)
        if given is not None:
            named = isinstance(given, str) and given.isidentifier() and hasattr(module, given)
            if named and PARAMETER.fullmatch(name):
                return _of_object(name, getattr(module, given), f"module.{given}")
            continue
        needed = name in open_names
        if needed or (strange and PARAMETER.fullmatch(name)):
            left = [one for one in open_names if one not in options]
            found = _settings_of(factory, parameter, module, left == [name], strange)
            if found is not None:
                return found
    return None


def required_names(takes: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> list[str]:
    """Parameters that must be given and are not among the options."""
    return [
        name
        for name, one in takes.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and name not in options
    ]


def _settings_of(
    factory: Any,
    parameter: inspect.Parameter,
    module: ModuleType | None,
    only: bool,
    strange: Sequence[str],
) -> Settings | None:
    """Of one parameter; `only`: nothing else is needed, so it may have any name.

    `strange` are options that the code itself does not take.
    """
    name, called = parameter.name, bool(PARAMETER.fullmatch(parameter.name))
    fills = getattr(factory, "get_default_config", None)
    if called and callable(fills) and not required_names(_parameters(fills), {}):
        with theirs(f"{factory.__name__}.get_default_config() failed"):
            base = fills()
        place = f"{_place(factory, module)}.get_default_config()"
        return Settings(parameter=name, form="fill", base=base, place=place)
    kind = getattr(factory, "config_class", None) if called else None
    if not inspect.isclass(kind):
        kind = _annotated_class(parameter, module)
        if kind is None and parameter.annotation is not parameter.empty and not called:
            return None
    if kind is None and type(parameter.default).__module__ not in ("builtins", "inspect"):
        kind = type(parameter.default)
    if kind is dict or (kind is None and called and _reads_keys(_source(module), name)):
        return Settings(parameter=name, form="dict", base={}, place="")
    if kind is not None and not called and not is_dataclass(kind):
        return None
    if kind is None and (called or only):
        kind = _class_beside(factory, module, called, strange)
    if kind is None and called:
        kind = SimpleNamespace
    if kind is None:
        return None
    return Settings(parameter=name, form="call", base=kind, place=_place(kind, module))


def _of_object(parameter: str, found: object, place: str) -> Settings | None:
    """Settings that the person named: a class of the file, a dict, or any other object."""
    if inspect.isclass(found):
        return Settings(parameter=parameter, form="call", base=found, place=place)
    if isinstance(found, dict):
        return Settings(parameter=parameter, form="dict", base=found, place=place)
    if hasattr(found, "__dict__") and not callable(found):
        return Settings(parameter=parameter, form="fill", base=found, place=place)
    return None


def _annotated_class(parameter: inspect.Parameter, module: ModuleType | None) -> type | None:
    """The class that a parameter says it takes, `Config | None` included; None if it says none."""
    said = annotation_of(parameter, module)
    if said is None:
        return None
    kinds = [one for one in typing.get_args(said) if one is not type(None)]
    origin = typing.get_origin(said)
    if kinds and not (inspect.isclass(origin) and issubclass(origin, Mapping)):
        said = kinds[0] if len(kinds) == 1 else None
    if typing.get_origin(said) is not None:
        said = typing.get_origin(said)
    if not inspect.isclass(said) or said is parameter.empty:
        return None
    if said is dict or said is Mapping or getattr(said, "__module__", "") == "typing":
        return dict if said is not Any else None
    return None if said.__module__ == "builtins" or issubclass(said, nn.Module) else said


def _class_beside(
    factory: Any, module: ModuleType | None, by_name: bool, strange: Sequence[str]
) -> type | None:
    """The class of settings in the code's module: the one that its name tells, or the only one."""
    home, owner = getattr(factory, "__module__", ""), getattr(factory, "__name__", "")
    every = [one for one in vars(module).values() if inspect.isclass(one)] if module else []
    every = [one for one in dict.fromkeys(every) if not issubclass(one, nn.Module)]
    plain = [one for one in every if is_dataclass(one) and one.__module__ == home]
    ends = {one: re.search(f"{ENDING}$", one.__name__) for one in every}
    named = [one for one in every if ends[one] and one.__name__ not in PRETRAINED and by_name]
    stems = {one: one.__name__.removesuffix(ends[one].group()) for one in named}  # type: ignore
    exact = [one for one in named if stems[one] == owner]
    beginning = [one for one in named if stems[one] and owner.startswith(stems[one])]
    at_home = [one for one in named if one.__module__ == home]
    for some in (exact, beginning, named, at_home):
        bases = [one for one in some if not set(one.__mro__[1:]) & set(some)]
        if len(bases) == 1:
            return bases[0]
    # a dataclass of any other name may be something else, such as what the code gives
    fits = [one for one in plain if {it.name for it in fields(one)}.issuperset(strange)]
    return plain[0] if not named and len(plain) == 1 and fits else None


def _is_pretrained(kind: Any) -> bool:
    return any(base.__name__ in PRETRAINED for base in kind.__mro__)


def _public(holder: object) -> dict[str, Any]:
    """Values that a class or an object holds under a plain name, inherited ones included."""
    kinds = holder.__mro__ if inspect.isclass(holder) else type(holder).__mro__
    found: dict[str, Any] = {}
    for one in reversed(kinds):
        found |= vars(one) if one is not object else {}
    found |= {} if inspect.isclass(holder) else vars(holder)
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and not callable(value) and not hasattr(value, "__get__")
    }


def _parameters(code: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return signature(code).parameters
    except (TypeError, ValueError):
        return {}


def _place(thing: Any, module: ModuleType | None) -> str:
    """A class or a function as a script writes it."""
    if thing is SimpleNamespace:
        return "SimpleNamespace"
    known = vars(module).items() if module else ()
    own = next((name for name, one in known if one is thing), None)
    return f"module.{own}" if own else f"sys.modules[{thing.__module__!r}].{thing.__qualname__}"


def _source(code: Any) -> str:
    """Of a module or a piece of code; empty if it is not there."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


@lru_cache(maxsize=64)
def _words(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source))


def _nodes(source: str) -> Iterator[ast.AST]:
    try:
        return ast.walk(ast.parse(textwrap.dedent(source)))
    except (SyntaxError, ValueError):
        return iter(())


@lru_cache(maxsize=64)
def _reads_keys(source: str, name: str) -> bool:
    """Whether code reads `name["key"]`, more often than `name.key`."""
    keys = attributes = 0
    for node in _nodes(source):
        inner = getattr(node, "value", None)
        if isinstance(inner, ast.Name) and inner.id == name:
            keys += isinstance(node, ast.Subscript)
            attributes += isinstance(node, ast.Attribute)
    return keys > attributes


def _read_in_vain(error: BaseException, made: Any) -> dict[str, str]:
    """Settings that the function reads in which it failed and that are not there.

    By key or attribute: what the function calls the settings.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return {}
    frame = trace.tb_frame
    names = {name for name, value in frame.f_locals.items() if value is made}
    nodes = list(_nodes(_source(frame.f_code)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    found: dict[str, str] = {}
    for node in nodes:
        inner = getattr(node, "value", None)
        if not isinstance(inner, ast.Name) or inner.id not in names or id(node) in called:
            continue
        if isinstance(made, dict) and isinstance(node, ast.Subscript):
            key = getattr(node.slice, "value", None)
        else:
            key = getattr(node, "attr", None)
        there = key in made if isinstance(made, dict) else hasattr(made, str(key))
        if isinstance(key, str) and not there and isinstance(getattr(node, "ctx", None), ast.Load):
            found[key] = inner.id
    return found


def check_options_are_read(
    options: Mapping[str, Any], what: str, settings: Settings, factory: Any, code: object
) -> None:
    """An InputError for an option that settings took in, though nothing names it: a slip."""
    own, _ = settings.names()
    known = own.union(read_names(factory, {settings.parameter}))
    modules = {getattr(factory, "__module__", ""), getattr(settings.base, "__module__", "")}
    kinds = settings.base.__mro__ if inspect.isclass(settings.base) else type(settings.base).__mro__
    modules |= {one.__module__ for one in kinds}
    if isinstance(code, nn.Module):
        modules |= {type(one).__module__ for one in code.modules()}
    words: set[str] = set()
    for name in modules - {"builtins", "types"}:
        source = _source(sys.modules.get(name))
        if not source:
            return  # somewhere it cannot be looked for
        words |= _words(source)
    for name in options:
        if name not in known and name not in words:
            raise InputError(
                f"{what} reads no {name!r}; {advice(name, options[name], sorted(known))}"
            )


def advice(name: str, value: object, known: list[str]) -> str:
    """What to do with an option that the code does not take."""
    if name in DECLARED:
        text = str(value).lower() if value is None or isinstance(value, bool) else value
        return f"what it must do is declared: --declare {name}={text}"
    return registry.suggest(name, known) if known else f"leave {name}= out"
