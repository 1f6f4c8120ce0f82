"""What can be started from the page: a preset and settings in their ranges, as a command line.

Keys, types, ranges and defaults are those of the settings classes; values come as they are written
on the command line and are read by the same code. A setting that holds a text, such as a path, is
not offered: a text to train on is one that `attnlab page --text PATH` has named, and weights to
start from are those of a run in the list. What does not fit in memory is refused.
"""

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from attnlab import config, registry
from attnlab.compare.parse import RECIPE, ComparisonSettings, Variant, parse
from attnlab.compare.parse import SETTINGS as COMPARISON
from attnlab.config.hints import members
from attnlab.experiments.local import LocalPool
from attnlab.page.validation import shorten, text
from attnlab.training.launch import recipe_for
from attnlab.training.parallel import torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.setup import memory_of, step_bytes
from attnlab.training.text import file_of
from attnlab.training.weights import bytes_wanted

S = TypeVar("S")
KINDS = ("train", "compare")
MAIN = (  # what a person changes first; the others are folded away
    *("steps", "batch", "seed", "model.width", "model.depth", "model.context"),
    *("model.attention", "model.positions", "model.window", "optimiser.rate"),
)
MAIN_OF_COMPARISON = ("seeds", "match")
HIDDEN = ("start", "parallel", "model.vocabulary")  # of torchrun, and of the tokenizer
# what a comparison decides for all of its trainings
OF_THE_COMPARISON = (
    *("seed", "evaluate_every", "save_every", "save_best", "keep", "patience"),
    *("sample_every", "sample_tokens", "tensorboard"),
)
MOST_SETTINGS, MOST_VARIANTS = 80, 6
LABEL = re.compile(r"[A-Za-z][\w+.-]{0,39}", re.ASCII)
VALUE = re.compile(r"[\w.,+ -]{1,120}", re.ASCII)  # no "=": a comma before a key begins a word
LARGEST_ALPHABET = 256  # assumed of a text that was not read yet; a BPE tokenizer says its own
DOCUMENT = 4_000  # bytes of an invented document, its text and its tokens
COPIES = 5  # of the weights: themselves, gradients, two moments of AdamW, a moving average


class Problem(ValueError):
    """What is wrong with a choice, and the field where a person can mend it."""

    def __init__(self, line: str, key: str = "", variant: int | None = None) -> None:
        super().__init__(line)
        self.line, self.key, self.variant = line, key, variant

    def plain(self) -> dict[str, Any]:
        return {"line": self.line, "key": self.key, "variant": self.variant}


@dataclass(frozen=True)
class Choices:
    """What a person has chosen, each thing of its type; nothing else is checked yet."""

    kind: str
    preset: str
    text: str  # one of the page's, or empty for that of the preset
    start: str  # the name of a run, or empty
    settings: Mapping[str, str]
    comparison: Mapping[str, str]
    variants: Sequence[tuple[str, Mapping[str, str]]]  # label, settings of its own

    @property
    def hidden(self) -> Sequence[str]:
        return OF_THE_COMPARISON if self.kind == "compare" else ()

    @classmethod
    def read(cls, body: Mapping[str, Any], texts: Sequence[str]) -> "Choices":
        kind, preset = body.get("kind", "train"), body.get("preset")
        if kind not in KINDS:
            raise ValueError(f"kind is {shorten(kind)}; use train or compare")
        presets = [option.name for option in registry.options("preset")]
        if preset not in presets:
            raise ValueError(f"preset is {shorten(preset)}; choose from {', '.join(presets)}")
        chosen = body.get("text", "")
        if chosen not in ("", *texts):
            raise ValueError(
                f"text is {shorten(chosen)}; the page offers those it was started with: "
                "attnlab page --text PATH"
            )
        variants = body.get("variants", [])
        if not isinstance(variants, list) or len(variants) > MOST_VARIANTS:
            raise ValueError(f"variants is a list of at most {MOST_VARIANTS}")
        return cls(
            kind=kind,
            preset=preset,
            text=chosen,
            start=text(body, "start", 300, least=0) if "start" in body else "",
            settings=_words(body, "settings"),
            comparison=_words(body, "comparison"),
            variants=[_variant(one) for one in variants],
        )


def _words(body: Mapping[str, Any], name: str) -> dict[str, str]:
    found = body.get(name, {})
    if not isinstance(found, dict) or len(found) > MOST_SETTINGS:
        raise ValueError(f"{name} is an object of at most {MOST_SETTINGS} settings")
    for key, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"{key[:60]} is {shorten(value)}; send it as a text")
    return found


def _variant(given: Any) -> tuple[str, dict[str, str]]:
    if not isinstance(given, dict):
        raise ValueError('a variant is {"label": "…", "settings": {…}}')
    return text({"label": "", **given}, "label", 40, least=0), _words(given, "settings")


class Commands:
    """Command lines for a folder of runs, with the texts that the page was started with."""

    def __init__(self, root: Path, texts: Sequence[Path] = ()) -> None:
        self.root, self.texts = root, [str(path) for path in texts]

    def presets(self) -> list[dict[str, str]]:
        return [{"name": one.name, "about": one.summary} for one in registry.options("preset")]

    def plan(self, body: Mapping[str, Any], starts: Sequence[str] = ()) -> dict[str, Any]:
        """The form as it is with these choices: its fields, its command line, what is wrong."""
        choices = Choices.read(body, self.texts)
        problem, words, parameters = None, list[str](), None
        try:
            recipes = self._recipes(choices, starts)
            words = self.words(choices, starts)
            parameters = [int(bytes_wanted(_with_vocabulary(one).model) / 4) for one in recipes]
        except Problem as error:
            problem = error.plain()
        usual, compared = registry.load("preset", choices.preset)(), ComparisonSettings()
        of_comparison = _nearest(compared, choices.comparison)
        return {
            "problem": problem,
            "command": shlex.join(["attnlab", *words]) if words else "",
            "parameters": parameters,
            "reads_text": hasattr(usual.corpus, "path"),
            "fields": _fields(_nearest(usual, choices.settings), usual, MAIN, choices.hidden),
            "comparison": _fields(of_comparison, compared, MAIN_OF_COMPARISON),
            "variants": [
                _fields(_nearest(usual, {**choices.settings, **own}), usual, MAIN, choices.hidden)
                for _, own in choices.variants
            ],
        }

    def words(self, choices: Choices, starts: Sequence[str] = ()) -> list[str]:
        """What follows `attnlab`, all of it checked; a Problem says what is wrong."""
        recipes = self._recipes(choices, starts)
        common = [*_pairs(choices.settings), *self._data(choices)]
        words = ["train", choices.preset, *common]
        if choices.kind == "compare":
            variants = [_spelled(choices.preset, *one) for one in choices.variants]
            words = ["compare", *variants, *_pairs(choices.comparison), *common]
            _check_comparison(choices, words[1:], recipes)
        elif choices.start:
            words.append(f"start={self.root / choices.start}")
        return words if self.root == Path("runs") else [*words, "--runs", str(self.root)]

    def _data(self, choices: Choices) -> list[str]:
        return [f"data={choices.text}"] if choices.text else []

    def _recipes(self, choices: Choices, starts: Sequence[str]) -> list[Recipe]:
        """The recipes that would be trained, each within memory."""
        if choices.kind == "compare" and len(choices.variants) < 2:
            raise Problem("a comparison needs two variants or more; add one")
        own = [one for _, one in choices.variants] if choices.kind == "compare" else [{}]
        found = []
        for number, more in enumerate(own):
            variant = number if choices.kind == "compare" else None
            recipe = self._recipe(choices, more, variant)
            if choices.kind == "train":
                recipe = self._started(choices, recipe, starts)
            found.append(recipe)
        at_once = 1
        if choices.kind == "compare":
            at_once = LocalPool().concurrency(len(found))
        for number, recipe in enumerate(found):
            variant = number if choices.kind == "compare" else None
            try:
                refuse_too_large(recipe, at_once)
            except ValueError as error:
                raise Problem(str(error), variant=variant) from None
        return found

    def _recipe(self, choices: Choices, own: Mapping[str, str], variant: int | None) -> Recipe:
        wanted = {**choices.settings, **own}
        try:
            _refuse_unoffered(registry.load("preset", choices.preset)(), wanted, choices.hidden)
            recipe = recipe_for(choices.preset, [*_pairs(wanted), *self._data(choices)])
        except Problem as error:
            raise Problem(error.line, error.key, variant if error.key in own else None) from None
        except ValueError as error:
            key = key_of(str(error), wanted)
            raise Problem(str(error), key, variant if key in own or not key else None) from None
        if file_of(recipe.corpus) not in ("", choices.text, *_named_by(choices.preset)):
            raise Problem("the page reads no other text; start it with --text PATH", "text")
        if _lacks_text(recipe):
            raise Problem(
                f"{choices.preset} reads a text of yours: choose one, or name one when the page is "
                "started: attnlab page --text PATH",
                "text",
            )
        return recipe

    def _started(self, choices: Choices, recipe: Recipe, starts: Sequence[str]) -> Recipe:
        if choices.start and choices.start not in starts:
            raise Problem(f"there is no run {choices.start[:80]!r} with weights here", "start")
        return dataclasses.replace(recipe, start=choices.start or recipe.start)


def key_of(line: str, keys: Iterable[str]) -> str:
    """The setting that an error is about: its line begins with the key, or with the end of it."""
    begun = line.partition(" ")[0].rstrip(":")
    return next((key for key in keys if f".{key}".endswith(f".{begun}")), "")


def _refuse_unoffered(
    settings: object, wanted: Mapping[str, str], hidden: Sequence[str] = ()
) -> None:
    """Before a value is used for anything: a name may be that of code somewhere else."""
    offered = _offered(settings, wanted)
    for key, value in wanted.items():
        if key in hidden:
            raise Problem(f"{key} is set by the comparison, for all variants; leave it out", key)
        if key not in offered:
            raise Problem(f"{key[:60]} cannot be set on the page; use the command line", key)
        _refuse_value(key, value, offered[key])


def _refuse_value(key: str, value: str, names: list[str] | None) -> None:
    if names is not None and value.strip() not in names:
        raise Problem(f"{key} is {shorten(value)}; {registry.suggest(value.strip(), names)}", key)
    if not VALUE.fullmatch(value.strip()):
        raise Problem(f"{key} is {shorten(value)}; use a number or a word of the list", key)


def refuse_too_large(recipe: Recipe, at_once: int = 1) -> None:
    """Before anything is started: text, weights with what training keeps of them, and one step."""
    recipe, corpus = _with_vocabulary(recipe), recipe.corpus
    text = DOCUMENT * (getattr(corpus, "people", 0) or 0) * getattr(corpus, "wordings", 0)
    wanted = at_once * (text + COPIES * bytes_wanted(recipe.model) + step_bytes(recipe))
    there = memory_of(torch_device(recipe.device))
    if wanted > there:
        trainings = f"{at_once} trainings at a time need" if at_once > 1 else "a training needs"
        raise ValueError(
            f"{trainings} about {wanted / 1e9:,.0f} GB and this machine has {there / 1e9:,.0f}; "
            "use a smaller width, depth, batch or context, or less text"
        )


def _with_vocabulary(recipe: Recipe) -> Recipe:
    size = getattr(recipe.tokenizer, "vocabulary", LARGEST_ALPHABET)
    model = dataclasses.replace(recipe.model, vocabulary=size)  # type: ignore[type-var]
    return dataclasses.replace(recipe, model=model)


def _check_comparison(choices: Choices, words: list[str], recipes: Sequence[Recipe]) -> None:
    """What `attnlab compare` says of these words, which must mean the same to it as to us."""
    _refuse_unoffered(ComparisonSettings(), choices.comparison)
    for number, (label, _) in enumerate(choices.variants):
        if label and (not LABEL.fullmatch(label) or label in (*COMPARISON, *RECIPE)):
            raise Problem(
                f"{label!r} is no label; use letters, digits and + - _ . after a letter, "
                "and no name of a setting",
                "label",
                number,
            )
    try:
        plan = parse(words)
    except ValueError as error:
        raise Problem(str(error), key_of(str(error), choices.comparison)) from None
    if [one.recipe for one in plan.variants] != list(recipes):
        raise Problem("these settings mean something else to attnlab compare; use the terminal")


def _spelled(preset: str, label: str, own: Mapping[str, str]) -> str:
    spec = Variant(label, preset, tuple(_pairs(own)), Recipe()).spec
    return f"{label}={spec}" if label else spec


def _pairs(settings: Mapping[str, str]) -> list[str]:
    return [f"{key}={value.strip()}" for key, value in settings.items()]


def _nearest(settings: S, wanted: Mapping[str, str]) -> S:
    """Settings to show the fields of: with all that is wanted, or with what can be applied."""
    rest = dict(wanted)
    for _ in wanted:
        try:
            _refuse_unoffered(settings, rest)
        except Problem as error:
            del rest[error.key]
    for words in [_pairs(rest), *([word] for word in _pairs(rest))]:  # all at once, else each
        try:
            settings = config.override(settings, words)
        except ValueError:
            continue
    return settings


def _lacks_text(recipe: Recipe) -> bool:
    return getattr(recipe.corpus, "path", None) == ""


def _named_by(preset: str) -> list[str]:
    return [file_of(registry.load("preset", preset)().corpus)]


def _fields(
    settings: object, usual: Any, main: Sequence[str], hidden: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every setting that is offered: as it is now, as it usually is, and what it may be."""
    offered = _offered(settings)
    described = config.describe(settings, chosen=True)
    described.sort(key=lambda one: main.index(one.key) if one.key in main else len(main))
    defaults = {one.key: one.default for one in config.describe(usual, chosen=True)}
    return [
        {
            "key": one.key,
            "value": one.default,
            "usual": defaults.get(one.key),
            "choices": offered[one.key],
            "values": "" if offered[one.key] else one.values,
            "about": one.about,
            "main": one.key in main,
        }
        for one in described
        if one.key in offered and one.key not in hidden
    ]


def _offered(
    settings: Any, wanted: Mapping[str, str] | None = None, prefix: str = ""
) -> dict[str, list[str] | None]:
    """The settings that a page may change, once the wanted options are chosen.

    Each with the names to choose from, or None where it is a number.
    """
    hints, found = get_type_hints(type(settings)), dict[str, list[str] | None]()
    for field in dataclasses.fields(settings):
        key, value = prefix + field.name, getattr(settings, field.name)
        kind = field.metadata.get("kind")
        if key in HIDDEN:
            continue
        if kind:
            found[key] = names = _options(kind, value)
            if wanted and key in wanted:
                _refuse_value(key, wanted[key], names)
                value = registry.load(kind, wanted[key].strip())()
        if dataclasses.is_dataclass(value):
            found |= _offered(value, wanted, f"{key}.")
        elif (names_or_none := _names(hints[field.name], field)) is not False:
            found[key] = names_or_none
    return found


def _options(kind: str, chosen: object) -> list[str]:
    """The options of a kind that hold no path, and the one that is chosen already."""
    now = registry.name_of(kind, chosen)
    names = [option.name for option in registry.options(kind)]
    return [name for name in names if name == now or _holds_no_text(kind, name)]


def _holds_no_text(kind: str, name: str) -> bool:
    try:
        cls = registry.load(kind, name)
    except ValueError:  # of another package, which cannot be imported
        return False
    return not any(str in members(hint) or Path in members(hint) for hint in _hints(cls))


def _hints(cls: type) -> Iterable[Any]:
    hints = get_type_hints(cls)
    return [hints[field.name] for field in dataclasses.fields(cls)]


def _names(hint: Any, field: dataclasses.Field[Any]) -> list[str] | Literal[False] | None:
    """The words to choose from, None for a number or a list of numbers, False for a text."""
    parts = [part for part in members(hint) if part is not type(None)]
    limits = field.metadata.get("limits", config.Limits())
    if parts == [bool]:
        return ["true", "false"]
    if all(get_origin(part) is Literal for part in parts):
        return [str(one) for part in parts for one in get_args(part)]
    if parts == [str] and limits.choices:
        return list(limits.choices)
    inner = [get_args(part)[0] if get_origin(part) is tuple else part for part in parts]
    numbers = {int, float, type(None)}
    return None if all(set(members(part)) <= numbers for part in inner) else False
