"""From `file.py:Name` and options to something that can be audited.

Every way to be wrong here is a person's slip, and gets one line that says what to do.
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from attnlab import registry
from attnlab.audit.errors import InputError
from attnlab.audit.subject.siblings import plain_names, use_siblings

# what the width of a model is called
WIDTHS = ("width", "dim", "d_model", "embed_dim", "hidden_size", "n_embd", "model_dim", "channels")
_made_for_audit: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # which nobody else has


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """`width=32 name=small` -> {"width": 32, "name": "small"}."""
    found = {}
    for given in texts:
        key, equals, text = given.removeprefix("--").partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"{given!r} is not an option; write key=value, such as width=32")
        found[key] = _value(text)
    return found


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    try:
        return constants[text.lower()] if text.lower() in constants else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parts_of(target: str) -> tuple[str, str]:
    """The path and the name in `file.py:Name`; `file.py::Name`, as pytest has it, is as good."""
    path, _, name = target.rpartition(":")
    return path.removesuffix(":"), name


def from_file(target: str, options: Mapping[str, Any]) -> Any:
    """The object that `file.py:Name` names: a module made with the options, or a function."""
    path, name = parts_of(target)
    if not path:
        raise InputError(f"{target!r} names no code; write file.py:Name, or hf:ARCH")
    found = _member(_import(Path(path)), path, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InputError(f"{name} in {path} is {type(found).__name__}; name a class or a function")
    if not is_factory(found):
        return found
    code = make(found, options, f"{name} in {path}")
    if isinstance(code, nn.Module) and inspect.isclass(found):
        _made_for_audit.add(code)
    return code


def expression(target: str, options: Mapping[str, Any]) -> str:
    """How it is made, as Python: `module.GPT(config=module.Settings(n_embd=32))`."""
    found, module, name = _loaded_before(target)
    if isinstance(found, nn.Module) or not is_factory(found):
        return f"module.{name}"
    kind, wanted = settings_of(target), dict(options)
    arguments = []
    if kind is not None and _required_names(inspect.signature(found).parameters)[0] not in options:
        own = next((key for key, one in vars(module).items() if one is kind), None)
        place = f"module.{own}" if own else f"sys.modules[{kind.__module__!r}].{kind.__name__}"
        known = {one.name for one in fields(kind) if one.init} & wanted.keys()
        inner = ", ".join(f"{key}={wanted.pop(key)!r}" for key in options if key in known)
        arguments.append(
            f"{_required_names(inspect.signature(found).parameters)[0]}={place}({inner})"
        )
    arguments += [f"{key}={value!r}" for key, value in wanted.items()]
    return f"module.{name}({', '.join(arguments)})"


def settings_of(target: str) -> Any:
    """The class of settings that the code is made with, if it wants such an object; else None."""
    found = _loaded_before(target)[0]
    try:
        takes = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    needed = _required_names(takes)
    if isinstance(found, nn.Module) or len(needed) != 1 or needed[0] in WIDTHS:
        return None
    return _settings_class(found, takes[needed[0]])


def _loaded_before(target: str) -> tuple[Any, Any, str]:
    """What was loaded, its module and its name; the file is not run again for it."""
    path, name = parts_of(target)
    module = sys.modules.get(_module_name(Path(path))) or _import(Path(path))
    return _member(module, path, name), module, name


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
        return inspect.signature(code).parameters
    except (TypeError, ValueError):
        name = getattr(code, "__name__", type(code).__name__)
        raise InputError(
            f"{name} does not say what it takes; name a function of q, k and v that calls it"
        ) from None


def is_attention(names: Sequence[str]) -> bool:
    """Whether parameters of these names begin with queries, keys and values."""
    return [name[:1] for name in names[:3]] == ["q", "k", "v"]


def make(factory: Any, options: Mapping[str, Any], what: str) -> Any:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # built-in classes have none
        with _theirs(f"{what} cannot be made"):
            return factory(**options)
    takes = signature.parameters
    options = gather_settings(factory, takes, options)
    anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    for name in options:
        if name not in takes and not anything:
            raise InputError(f"{what} takes no {name!r}; {registry.suggest(name, list(takes))}")
    wanted = [name for name in _required_names(takes) if name not in options]
    if wanted:
        example = " ".join(f"{name}=…" for name in wanted)
        raise InputError(
            f"{what} needs {', '.join(wanted)}; add {example}, or name a function that makes it"
        )
    with _theirs(f"{what} cannot be made"):
        return factory(**options)


@contextmanager
def _theirs(what: str) -> Iterator[None]:
    """Around a person's code and nothing else: whatever it raises is one line that says so."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # to be reported as what they are
        raise
    except BaseException as error:  # code may raise what is no Exception
        reason = plain_names(f"{type(error).__name__}: {error}")
        raise InputError(f"{what}: {reason}") from error


def gather_settings(
    factory: Any, takes: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Options, those for a settings object gathered into it.

    Code that needs one thing, which is no option: a dataclass that it is said to be of, or the
    only one of the file, as in `GPT(config)` beside `class GPTConfig`.
    """
    needed = _required_names(takes)
    if len(needed) != 1 or needed[0] in options or needed[0] in WIDTHS:
        return dict(options)
    kind = _settings_class(factory, takes[needed[0]])
    if kind is None:
        return dict(options)
    names = {one.name for one in fields(kind) if one.init}
    with _theirs(f"{kind.__name__} cannot be made"):
        settings = kind(**{name: value for name, value in options.items() if name in names})
    rest = {name: value for name, value in options.items() if name not in names}
    for name in rest:
        if name not in takes:
            raise InputError(
                f"{kind.__name__} takes no {name!r}; {registry.suggest(name, sorted(names))}"
            )
    return {needed[0]: settings, **rest}


def _required_names(takes: Mapping[str, inspect.Parameter]) -> list[str]:
    return [
        name
        for name, one in takes.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]


def _settings_class(factory: Any, parameter: inspect.Parameter) -> Any:
    """The dataclass of a parameter: as it says itself, or the only one there is."""
    beside = vars(sys.modules.get(getattr(factory, "__module__", ""), object))
    said = parameter.annotation
    said = beside.get(said.strip("\"'"), said) if isinstance(said, str) else said
    if inspect.isclass(said) and is_dataclass(said):
        return said
    if said is not parameter.empty:
        return None
    own = [
        one
        for one in beside.values()
        if inspect.isclass(one) and is_dataclass(one) and one.__module__ == factory.__module__
    ]
    return own[0] if len(own) == 1 else None


def _module_name(path: Path) -> str:
    """By the whole path: files in two folders may have one name."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return f"attnlab_audited_{path.stem}_{digest[:16]}"


def _import(path: Path) -> Any:
    try:
        there = path.is_file()
    except OSError as error:  # a folder that may not be read, a name that is too long
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not there:
        raise InputError(f"{path} is no file; give the path of a Python file")
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look there
    folder = path.parent.resolve()
    use_siblings(module, folder)
    sys.path.insert(0, str(folder))  # for what is imported by other means than a statement
    try:
        with _theirs(f"{path} cannot be imported"):
            spec.loader.exec_module(module)
    except InputError as error:
        slip = error.__cause__
        if not isinstance(slip, SyntaxError):
            raise
        where = f", line {slip.lineno}" if slip.lineno else ""
        raise InputError(f"{path}{where}: {slip.msg}") from None
    finally:
        sys.path.pop(0)
    return module


def _member(module: Any, path: str, name: str) -> Any:
    if not hasattr(module, name):
        own = [
            known
            for known, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise InputError(f"{path} has no {name!r}; {registry.suggest(name, own)}")
    return getattr(module, name)
