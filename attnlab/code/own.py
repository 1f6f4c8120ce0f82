"""Settings of a person's own code, which stands in for an option of ours.

    model.attention=mine.py:Mine model.attention.slope=0.5      # mine.py: class Mine(nn.Module)

To read settings runs no code of theirs, so that a list of runs can come from anybody. `make` does,
if a person has named the code (consent.py). It gives the constructor what the laboratory knows
under the names that people have for it (width, d_model, n_embd, …), and the settings that were
given. A run keeps the fingerprint of the code: with other code it is not resumed.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from attnlab import registry
from attnlab.code import consent
from attnlab.code.fingerprint import Code, fingerprint, read, source_files
from attnlab.code.places import InputError, Place
from attnlab.code.running import line_of, running
from attnlab.config import settings, split_override
from attnlab.config.fields import open_settings, recorded
from attnlab.suggestions import SYNONYMS

FINGERPRINT = "SHA-256 of the code and of what it imports from its own folder or package"
# a parameter that takes all settings as one object: GPT(config)
CONFIG = re.compile(r"_?(config|configuration|cfg|conf|args|opts?|options|h?params|hps|settings)")
# what people call settings that have another name here
NAMES = {
    **SYNONYMS,
    **dict.fromkeys(("max_seq_len", "max_length", "n_positions"), "context"),
    **dict.fromkeys(("nhead", "num_attention_heads"), "heads"),
    **dict.fromkeys(("n_kv_head", "n_kv_heads", "num_kv_heads", "num_key_value_heads"), "kv_heads"),
    **dict.fromkeys(("hidden_dim", "embed_dim", "model_dim", "dim"), "width"),
    **dict.fromkeys(("head_dim", "dim_head", "d_head", "d_k"), "head_width"),
    **dict.fromkeys(("dropout_p", "attn_dropout", "attention_dropout"), "dropout"),
    **dict.fromkeys(("window_size", "sliding_window"), "window"),
}
SIZES = ("width", "depth", "heads")  # that a model may ask for
SHOWN = 12  # letters of a fingerprint in a message


@settings
class OwnCode:
    """What all own code has; `for_code` makes the class for one place in a file."""

    code: ClassVar[str] = ""  # `mine.py:Mine`
    option: ClassVar[str] = ""  # what a person writes: the same, or the name an installed one has
    key: ClassVar[str] = ""  # the setting that names it: model.attention

    source: str = recorded(str, about=FINGERPRINT)
    given: tuple[tuple[str, Any], ...] = open_settings(about="settings of the code itself")

    @classmethod
    def for_code(cls, code: str, option: str = "") -> "type[OwnCode]":
        found: type[OwnCode] = _class_for(cls, code, option or code)  # type: ignore[arg-type]
        return found

    def load(self) -> Any:
        """The class or function, if it is the code that the settings were made for."""
        path, _, names = self.code.rpartition(":")
        if not path or not all(map(str.isidentifier, names.split("."))):
            raise InputError(
                f"{self.code} names no code; write file.py:Name or package.module:Name"
            )
        found = self._read()  # once: what is compared, allowed and run is the same
        now = found.fingerprint
        if now and now != self.source:
            raise ValueError(_changed(self.option, self.source, now))
        if self.option == self.code:  # what is installed with a name was chosen by installing it
            consent.refuse_unnamed(self.code, found)
        return _load(self.code, found, Path.cwd())

    def _read(self) -> Code:
        try:
            return read(self.code)
        except InputError as error:
            if not self.source:  # settings that were made without it, by a word that is wrong
                raise
            raise InputError(
                f"{error}. The model was made with it: work in the folder where it is, or put the "
                f"copy here that the run keeps in its folder code/, and attnlab trust {self.code}"
            ) from None

    def files(self) -> frozenset[Path]:
        """Those that are a person's own: errors are told by their lines."""
        return frozenset(source_files(self.code))

    def make(self, known: Mapping[str, Any]) -> Any:
        """An object of their class, or what their function makes of the settings."""
        found = self.load()
        arguments = self._arguments(found, known)
        try:
            with running(f"{self.option} cannot be made", self.files()):
                return found(**arguments)
        except ValueError as error:
            slip = error.__cause__
            if isinstance(slip, AttributeError) and isinstance(slip.obj, _Config):
                raise ValueError(
                    f"{self.option} reads {slip.obj.parameter}.{slip.name}; "
                    f"write {self.key}.{slip.name}=…"
                ) from None
            raise

    def asked(self, known: Mapping[str, Any]) -> frozenset[str]:
        """What of this the constructor takes; an object of settings has all of it."""
        takes = _parameters(self.load(), self.code)
        every = any(map(CONFIG.fullmatch, takes))
        return frozenset(known if every else {_meaning(name) for name in takes} & set(known))

    def call(self) -> Callable[..., Any]:
        """Their function, to be called on tensors, with the settings that were given."""
        found = self.load()
        given = dict(self.given)
        self._refuse_unknown(given, inspect.signature(found).parameters)
        return functools.partial(found, **given)

    def _arguments(self, found: object, known: Mapping[str, Any]) -> dict[str, Any]:
        takes = _parameters(found, self.code)
        values = {name: known[_meaning(name)] for name in takes if _meaning(name) in known}
        given = dict(self.given)
        required = [
            name
            for name, one in takes.items()
            if one.default is one.empty
            and one.kind is not one.VAR_KEYWORD
            and name not in values
            and name not in given
        ]
        config = next((name for name in required if CONFIG.fullmatch(name)), None)
        if config is not None:
            outside = {name: one for name, one in given.items() if name in takes}
            inside = {name: one for name, one in given.items() if name not in takes}
            made = self._config(config, takes[config], known, inside)
            values, given = {**values, config: made}, outside
            required.remove(config)
        if required:
            words = " ".join(f"{self.key}.{name}=…" for name in required)
            raise ValueError(f"{self.option} needs {', '.join(required)}; write {words}")
        self._refuse_unknown(given, takes)
        self._refuse_other_types(given, takes)
        return {**values, **given}

    def _config(
        self,
        name: str,
        parameter: inspect.Parameter,
        known: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> object:
        """The object that a constructor takes its settings from: of its class, or with any name."""
        kind = parameter.annotation
        if inspect.isclass(kind) and kind is not parameter.empty and kind is not dict:
            takes = _parameters(kind, self.code)
            values = {one: known[_meaning(one)] for one in takes if _meaning(one) in known}
            self._refuse_unknown(given, takes)
            with running(f"{kind.__name__} of {self.option} cannot be made", self.files()):
                return kind(**{**values, **given})
        every = {name: known[means] for name, means in NAMES.items() if means in known}
        values = {**every, **known, **given}
        return values if kind is dict else _Config(name, values)

    def _refuse_unknown(
        self, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]
    ) -> None:
        if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            return
        for name in given:
            if name not in takes:
                near = registry.suggest(name, list(takes)) if takes else "leave it out"
                raise ValueError(f"{self.key}.{name}: {self.option} takes no {name!r}; {near}")

    def _refuse_other_types(
        self, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]
    ) -> None:
        """Numbers and switches are held to what the signature says of them."""
        for name, value in given.items():
            wanted = _number_type(takes[name]) if name in takes else None
            if wanted is None or (value is None and wanted.optional):
                continue
            whole = isinstance(value, int) and not isinstance(value, bool)
            fits = {
                "true or false": isinstance(value, bool),
                "a whole number": whole,
                "a number": whole or isinstance(value, float),
            }
            if not fits[wanted.words]:
                raise ValueError(
                    f"{self.key}.{name} is {value!r}; {self.option} takes {wanted.words} there"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        base = next(one for one in type(self).__mro__ if not getattr(one, "code", "-"))
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return _again, (base, self.code, self.option, values)


class _Config(SimpleNamespace):
    """Settings under all the names that people have for them."""

    def __init__(self, parameter: str, values: Mapping[str, Any]) -> None:
        super().__init__(**values)
        self.parameter = parameter


class _NumberType(NamedTuple):
    words: str
    optional: bool


def _number_type(parameter: inspect.Parameter) -> _NumberType | None:
    """Of a parameter that is a number or a switch, by its annotation, or else by its default."""
    words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    annotated, default = parameter.annotation, parameter.default
    if annotated is not parameter.empty:
        text = annotated.__name__ if inspect.isclass(annotated) else str(annotated)
        kinds = [
            one.strip()
            for one in re.sub(r"(?:\w+\.)?Optional\[(\w+)\]", r"\1|None", text).split("|")
        ]
        named = [one for one in kinds if one != "None"]
        if len(named) != 1 or named[0] not in words:
            return None
        return _NumberType(words[named[0]], "None" in kinds or default is None)
    if isinstance(default, bool):
        return _NumberType("true or false", False)
    return _NumberType("a number", False) if isinstance(default, int | float) else None


def _meaning(name: str) -> str:
    return NAMES.get(name, name)


def _parameters(found: Any, code: str) -> dict[str, inspect.Parameter]:
    try:
        takes = inspect.signature(found).parameters
    except (TypeError, ValueError):
        raise ValueError(f"{code} cannot be called; name a class or a function") from None
    return {name: one for name, one in takes.items() if one.kind is not one.VAR_POSITIONAL}


def _again(cls: type[OwnCode], code: str, option: str, values: dict[str, Any]) -> OwnCode:
    return cls.for_code(code, option)(**values)


@functools.cache
def _class_for(cls: type["OwnCode"], code: str, option: str) -> type["OwnCode"]:
    """The same class for the same code, so that equal settings are equal."""
    return dataclasses.make_dataclass(
        cls.__name__,
        [("source", str, recorded(lambda: fingerprint(code), about=FINGERPRINT))],
        bases=(cls,),
        namespace={"code": code, "option": option, "__module__": cls.__module__},
        frozen=True,
        kw_only=True,
    )


@functools.lru_cache(maxsize=64)  # once for all layers of a model
def _load(code: str, read: Code, folder: Path) -> Any:
    """`folder` is only there to tell one file from another of the same name."""
    path, _, names = code.rpartition(":")
    own = frozenset(read.files)
    _refuse_older(read)
    with running(f"{path} cannot be imported", own):
        try:
            found: Any = read.place.load(read.files)
        except InputError as error:
            raise InputError(f"{error}{line_of(error.__cause__, own)}") from error
    for name in names.split("."):
        if not hasattr(found, name):
            near = [one for one, it in vars(found).items() if _is_of(it, found)]
            advice = registry.suggest(name, near) if near else "it has no class and no function"
            raise InputError(f"{path} has no {name}; {advice}")
        found = getattr(found, name)
    return found


def _is_of(found: object, module: Any) -> bool:
    """Whether a class or function is defined in a module, and not only imported there."""
    home = getattr(found, "__module__", None)
    return callable(found) and home == getattr(module, "__name__", "")


_loaded: dict[Place, str] = {}  # fingerprints of modules that Python itself has found


def _refuse_older(read: Code) -> None:
    """Python loads such a module once; in a notebook it may have been edited since."""
    place, now = read.place, read.fingerprint
    if place.installed and _loaded.setdefault(place, now) != now:
        raise InputError(f"{place.text} has changed since Python has loaded it; start Python again")


def own_parts(value: object) -> list[OwnCode]:
    """Code of a person's own in some settings, however deep."""
    if not dataclasses.is_dataclass(value):
        return []
    found = [value] if isinstance(value, OwnCode) else []
    for field in dataclasses.fields(value):
        found += own_parts(getattr(value, field.name))
    return found


def allow_named(settings: object, words: Iterable[str]) -> None:
    """What a person has written as `key=file.py:Name` may be run."""
    named = {text for _, text in map(split_override, words)}
    for one in own_parts(settings):
        if one.code in named:
            consent.allow(one.code)
            with suppress(OSError):  # then a later command asks
                consent.remember(one.code)


def refuse_unreached(model: object, words: Iterable[str]) -> None:
    """A ValueError for a size that a person has written and their model does not ask for."""
    if not isinstance(model, OwnCode):
        return
    for path, text in map(split_override, words):
        name = path[-1]
        if path[:-1] != ["model"] or name not in SIZES:
            continue
        if name not in model.asked(dict.fromkeys(SIZES)):
            raise ValueError(
                f"model.{name}={text} would not reach {model.option}, which takes no {name!r}; "
                f"leave out model.{name}"
            )


def refuse_other_code(before: Any, after: Any) -> None:
    """A ValueError where the same code was another when the settings `before` were made."""
    known = {(type(one).key, one.code): one.source for one in own_parts(before)}
    for one in own_parts(after):
        old = known.get((type(one).key, one.code), one.source)
        if old != one.source:
            raise ValueError(_changed(one.option, old, one.source))


def _changed(code: str, old: str, now: str) -> str:
    return (
        f"{code} has changed since this model was made ({old[:SHOWN]}, now {now[:SHOWN]}); "
        "restore it (the run has a copy, in its folder code) or start a new run"
    )
