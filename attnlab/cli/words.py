"""The words after a verb: a setting is key=value or --key value, and so is an option.

    attnlab train tiny steps=5 --runs here        attnlab train tiny --steps 5 runs=here

Both lines are the same. Before the words are parsed, each is brought into the form that its verb
takes: settings as key=value (of a claim, as --set key=value), options with dashes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab import registry
from attnlab.suggestions import CLOSE, nearest

KEY = re.compile(r"[A-Za-z][\w.-]*")
SLIP = 0.8  # likeness of a name to the one it was meant to be
NEGATIVE = re.compile(r"-\.?\d")


@dataclass(frozen=True)
class Verb:
    """What a verb takes besides its arguments."""

    name: str
    options: dict[str, bool]  # with dashes: whether a value follows
    optional: tuple[str, ...] = ()  # options whose value may be left out
    settings: str = ""  # how it takes settings: "key=value", "--set key=value"; empty: it has none
    arguments: bool = True  # whether it has any
    first: str = ""  # the argument that comes before settings
    free: bool = False  # words without dashes are never options, as those of audited code

    @staticmethod
    def of(command: Any) -> "Verb":
        """The verb as it was declared to Typer."""
        options = {"--help": False, "-h": False}
        arguments = []
        for one in command.params:
            if one.param_type_name == "argument":
                arguments.append(one)
            else:
                takes = not (one.is_flag or one.count)
                options |= dict.fromkeys([*one.opts, *one.secondary_opts], takes)
        unknown = command.context_settings.get("ignore_unknown_options", False)
        single = [one.name for one in arguments if one.required and one.nargs == 1]
        return Verb(
            name=command.name,
            options=options,
            optional=getattr(command, "optional", ()),
            settings="key=value" if unknown else "--set key=value" if "--set" in options else "",
            arguments=bool(arguments),
            first=single[0] if single else "",
            free=command.name == "audit",
        )


def alike(words: Sequence[str], verb: Verb) -> list[str]:
    """The words as the verb takes them; a ValueError where one can be neither."""
    left, found = list(words), list[str]()
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        dashed = _dashed(name)
        if word == "--":
            return [*found, word, *left]
        if word.startswith("-") and dashed in verb.options:
            found.append(f"{dashed}{equals}{value}")
            if verb.options[dashed] and not equals and left and _follows(left[0], dashed, verb):
                found.append(left.pop(0))
        elif word.startswith("--") and verb.settings:
            if not equals and verb.free:
                _refuse_slip(word, verb)
            if not equals:
                value = left.pop(0) if left and is_value(left[0]) else _no_value(word, verb)
            found += _setting(f"{name[2:]}={value}", verb, found)
        elif word.startswith("-") and verb.settings == "key=value" and not is_value(word):
            raise ValueError(f"there is no option {word}; see attnlab {verb.name} --help")
        elif equals and KEY.fullmatch(name) and _is_option(dashed, value, verb):
            if not verb.options[dashed]:
                raise ValueError(f"{word}: {dashed} has no value; write {dashed} alone")
            found.append(f"{dashed}={value}")
        elif equals and KEY.fullmatch(name):
            found += _setting(word, verb, found)
        else:
            found.append(word)
    return found


def hint(error: ValueError, words: Iterable[str], verb: Verb) -> ValueError:
    """The error; of an unknown setting that was written with dashes, the option it may be."""
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        unknown = str(error).startswith(f"{option[2:].replace('-', '_')}: no such setting")
        named = "did you mean" in str(error)  # the settings have something as near
        if unknown and not named and registry.nearest(option, list(verb.options)):
            near = registry.suggest(option, list(verb.options))
            return ValueError(f"{option}: no such option or setting; {near}")
    return error


def is_value(word: str) -> bool:
    """Whether a word can be the value of the one before it: no option, and no setting."""
    return "=" not in word and (not word.startswith("-") or bool(NEGATIVE.match(word)))


def _follows(word: str, option: str, verb: Verb) -> bool:
    return option not in verb.optional or is_value(word)


def _dashed(name: str) -> str:
    return name if name == "-h" else f"--{name.lstrip('-').replace('_', '-')}"


def _is_option(dashed: str, value: str, verb: Verb) -> bool:
    """A label of a variant may have the name of an option: on=tiny:… is a variant."""
    if verb.free or dashed not in verb.options:
        return False
    presets = [option.name for option in registry.options("preset")]
    return not (verb.name == "compare" and value.partition(":")[0].replace("_", "-") in presets)


def _setting(word: str, verb: Verb, before: Sequence[str]) -> list[str]:
    if verb.first and not before:
        shown = verb.first.upper()
        raise ValueError(f"{shown} comes first: attnlab {verb.name} {shown} {word} …")
    if verb.settings == "key=value":
        return [word]
    if verb.settings:
        return ["--set", word]
    if verb.arguments and not before:  # an argument such as positions=alibi
        return [word]
    name = _dashed(word.partition("=")[0])
    raise ValueError(f"{word}: no such option; {registry.suggest(name, list(verb.options))}")


def _refuse_slip(word: str, verb: Verb) -> None:
    """Whoever comes that close to an option of ours means no setting.

    A setting without its value may be a little like an option; audited code is not known here.
    """
    close = CLOSE if verb.free else SLIP
    if nearest(word, list(verb.options), close=close):
        near = registry.suggest(word, list(verb.options))
        raise ValueError(f"there is no option {word}; {near}")


def _no_value(word: str, verb: Verb) -> str:
    _refuse_slip(word, verb)
    key = word[2:]
    raise ValueError(f"{word} has no value; write {key}=VALUE or {word} VALUE")
