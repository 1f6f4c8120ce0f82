"""From a name and options to something that can be audited.

    file.py:Name   package/file.py:Name   package.module:Name   file.py:Model.layers.0.attention

Every way to be wrong here is a person's slip, and gets one line that says what to do.
"""

import ast
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from attnlab import registry
from attnlab.audit.errors import InputError
from attnlab.audit.signature import signature
from attnlab.audit.subject.hints import (
    is_module_parameter,
    meant_by,
    notebook_advice,
    taken_as_text,
)
from attnlab.audit.subject.settings import (
    DECLARED,
    advice,
    check_options_are_read,
    required_names,
    settings_for,
)
from attnlab.code.places import place_of, theirs

# what the width of a model is called
WIDTHS = ("width", "dim", "d_model", "embed_dim", "hidden_size", "n_embd", "model_dim", "channels")
_made_for_audit: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # which nobody else has


def options_of(texts: Sequence[str], target: str = "") -> dict[str, Any]:
    """`width=32 name=small` -> {"width": 32, "name": "small"}."""
    found = {}
    for given in texts:
        key, equals, text = given.removeprefix("--").partition("=")
        if not equals and target.endswith(".py") and given.isidentifier():
            raise InputError(f"{target} and {given} are one word: write {target}:{given}")
        if not equals or not key.isidentifier():
            raise InputError(f"{given!r} is not an option; write key=value, such as width=32")
        found[key] = _value(text)
    return found


def _value(text: str) -> object:
    constants = {"true": True, "false": False, "none": None}
    try:
        return constants[text.lower()] if text.lower() in constants else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parts_of(target: str) -> tuple[str, str]:
    """The path and the name in `file.py:Name`; `file.py::Name`, as pytest has it, is as good."""
    path, _, name = target.rpartition(":")
    return path.removesuffix(":"), name


@dataclass(frozen=True, kw_only=True)
class _Member:
    """What a target names: `found` in a module, and what is wanted of that once it is made."""

    module: Any
    found: Any
    outer: tuple[str, ...]  # names that lead to it
    inner: tuple[str, ...]  # names that lead on from what it makes


def from_file(target: str, options: Mapping[str, Any]) -> object:
    """The object that a target names: a module made with the options, or a function."""
    where, name = parts_of(target)
    if not where or not name:
        raise InputError(f"{target!r} names no code; {meant_by(target)}")
    if where.endswith(".ipynb"):
        raise InputError(f"{where} is no Python file; {notebook_advice()}")
    member = _member(place_of(where).load(), where, name)
    found = member.found
    if isinstance(found, nn.Module):
        for one in DECLARED.difference(("heads", "kv_heads")).intersection(options):
            hint = advice(one, options[one], [])
            raise InputError(f"{name} in {where} is made already, without {one!r}; {hint}")
        return found
    if not callable(found):
        raise InputError(f"{name} in {where} is {type(found).__name__}; name a class or a function")
    if not is_factory(found):
        known = [*parameters_of(found), "kv_heads"]
        for one in (one for one in options if one not in known):
            hint = advice(one, options[one], known[3:])
            raise InputError(f"{name} in {where} takes no {one!r}; {hint}")
        return found
    try:
        code = make(found, options, f"{'.'.join(member.outer)} in {where}")
    except InputError as error:
        hint = taken_as_text(member.module, options, where)
        raise InputError(f"{error}{hint}") from error if hint else error.__cause__
    for one in member.inner:
        code = _attribute(code, one, target)
    if isinstance(code, nn.Module) and inspect.isclass(found):
        _made_for_audit.add(code)
    return code


def text_hint(target: str, options: Mapping[str, Any]) -> str:
    """Of an option that names something of the file, and was taken as a text; or empty."""
    return taken_as_text(_loaded_before(target).module, options, parts_of(target)[0])


def expression(target: str, options: Mapping[str, Any]) -> str:
    """How it is made, as Python: `module.GPT(config=module.Settings(n_embd=32))`."""
    member = _loaded_before(target)
    found, place = member.found, f"module{_path_text(member.outer)}"
    if isinstance(found, nn.Module) or not is_factory(found):
        return place
    takes = _signature(found)
    settings = settings_for(found, takes, options, WIDTHS)
    arguments, rest = [], dict(options)
    if settings is not None:
        inside, rest = settings.split(options, takes)
        arguments.append(f"{settings.parameter}={settings.text(inside)}")
    arguments += [f"{key}={value!r}" for key, value in rest.items()]
    return f"{place}({', '.join(arguments)}){_path_text(member.inner)}"


def defaults_of(target: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What code is made with where no option says otherwise."""
    found = _loaded_before(target).found
    if isinstance(found, nn.Module):
        return {}
    takes = _signature(found)
    settings = settings_for(found, takes, options, WIDTHS)
    own = {name: one.default for name, one in takes.items() if one.default is not one.empty}
    return {**own, **(settings.defaults() if settings is not None else {})}


def _loaded_before(target: str) -> _Member:
    """What was loaded; a file is not run again for it."""
    where, name = parts_of(target)
    place = place_of(where)
    return _member(place.loaded() or place.load(), where, name)


def _path_text(names: Sequence[str]) -> str:
    return "".join(f"[{one}]" if one.isdigit() else f".{one}" for one in names)


def made_for_audit(module: nn.Module) -> bool:
    """Whether it was made for the audit, which need not copy it then."""
    return module in _made_for_audit


def is_factory(found: Any) -> bool:
    """Whether calling it gives what is to be audited: a class, or a function that builds one."""
    if inspect.isclass(found):
        return True
    return not is_attention([name.lower() for name in parameters_of(found)])


def parameters_of(code: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What code takes; an InputError for built-in code, which may not say."""
    try:
        return signature(code).parameters
    except (TypeError, ValueError):
        name = getattr(code, "__name__", type(code).__name__)
        raise InputError(
            f"{name} does not say what it takes; name a function of q, k and v that calls it"
        ) from None


def is_attention(names: Sequence[str]) -> bool:
    """Whether parameters of these names begin with queries, keys and values."""
    return [name[:1] for name in names[:3]] == ["q", "k", "v"]


def make(factory: Any, options: Mapping[str, Any], what: str) -> object:
    takes = _signature(factory)
    if not takes:  # built-in classes need not say what they take
        with theirs(f"{what} cannot be made"):
            return factory(**options)
    settings, made = settings_for(factory, takes, options, WIDTHS), None
    inside, rest = dict[str, Any](), dict(options)
    if settings is not None:
        inside, rest = settings.split(options, takes)
    anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    for name in rest:
        if name not in takes and not anything:
            owner, known = what, list(takes)
            if settings is not None:
                owner, known = settings.name, sorted(settings.names()[0])
            raise InputError(f"{owner} takes no {name!r}; {advice(name, rest[name], known)}")
    given = dict(rest)
    if settings is not None:
        _require(settings.name, settings.missing(inside))
        with theirs(f"{settings.name} cannot be made"):
            made = given[settings.parameter] = settings.make(inside)
    _require_modules(what, factory, takes, given)
    _require(what, required_names(takes, given), ", or name a function that makes it")
    try:
        with theirs(f"{what} cannot be made"):
            code = factory(**given)
    except InputError as error:
        lack = settings.lack(error.__cause__, made, factory) if settings is not None else ""
        if not lack:
            raise
        raise InputError(f"{what} cannot be made: {lack}") from error
    if settings is not None:
        check_options_are_read(inside, what, settings, factory, code)
    return code


def _require(what: str, names: Sequence[str], more: str = "") -> None:
    if names:
        example = " ".join(f"{name}=…" for name in names)
        raise InputError(f"{what} needs {', '.join(names)}; add {example}{more}")


def _require_modules(
    what: str, factory: Any, takes: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> None:
    """A parameter that says it takes a module cannot be an option."""
    module = sys.modules.get(getattr(factory, "__module__", "") or "")
    needed = required_names(takes, given)
    inside = [name for name in needed if is_module_parameter(takes[name], module)]
    if inside:
        rest = [f"{name}={given[name]!r}" if name in given else f"{name}=…" for name in takes]
        used = [one for one in rest if one.partition("=")[0] in (*needed, *given)]
        raise InputError(
            f"{what} needs {', '.join(inside)}, which is a module and no key=value: write a "
            f"function that makes it, def make(): return {factory.__name__}({', '.join(used)}), "
            "into a file and audit file.py:make"
        )


def _signature(factory: Any) -> Mapping[str, inspect.Parameter]:
    """What a factory takes; nothing if it does not say, as built-in classes."""
    try:
        return signature(factory).parameters
    except (TypeError, ValueError):
        return {}


def _member(module: Any, where: str, name: str) -> _Member:
    """What the dotted name leads to: as far as it goes without making anything."""
    names = name.split(".")
    found = module
    for number, one in enumerate(names):
        if number and _made_first(found, one):
            outer, inner = tuple(names[:number]), tuple(names[number:])
            return _Member(module=module, found=found, outer=outer, inner=inner)
        found = _attribute(found, one, f"{where}:{'.'.join(names[:number])}" if number else where)
    return _Member(module=module, found=found, outer=tuple(names), inner=())


def _made_first(holder: object, name: str) -> bool:
    """Whether a name is one of what a class or a function makes, not of the class itself."""
    if inspect.isclass(holder):
        own = inspect.getattr_static(holder, name, None)
        return own is None or inspect.isfunction(own) or isinstance(own, property)
    return inspect.isfunction(holder) and not hasattr(holder, name)


def _attribute(holder: Any, name: str, where: str) -> object:
    with suppress(IndexError, TypeError, KeyError):
        if name.isdigit():
            return holder[int(name)]
    if not hasattr(holder, name):
        known = list(vars(holder)) if hasattr(holder, "__dict__") else []
        if isinstance(holder, nn.Module):
            known = [child for child, _ in holder.named_children()]
        elif isinstance(holder, ModuleType):
            known = [
                known
                for known, value in vars(holder).items()
                if callable(value) and getattr(value, "__module__", "") == holder.__name__
            ]
        raise InputError(f"{where} has no {name!r}; {registry.suggest(name, known)}")
    return getattr(holder, name)
