"""What a person writes to compare variants, as settings.

    learned=tiny:model.positions=learned    a variant: label=preset:key=value,…
    tiny:model.window=16,none               its label and its words can be left out
    match=flops seeds=5                     how they are compared
    steps=200 model.width=64                for all variants; a variant's own words come after
    lab                                     the comparison that `make lab` shows

A comma begins a new word only where a `key=` follows it.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnlab import config, registry
from attnlab.presets import TUNED
from attnlab.studies.desk import slug
from attnlab.training import launch
from attnlab.training.recipe import Recipe

# four answers to "who sees whom, and where": five minutes of one core's work, so about three on two
# idle cores. 15 % of the text is held out: with 5 % the error by text of learned positions is five
# times that by seeds. So short a training wants two to four times the rate of the preset's 800
# steps. What was told in four blocks of seeds, 40 to 43, 50 to 53, 60 to 63 and 70 to 73:
# docs/benchmarks.md
LAB = (
    "learned=tiny:model.positions=learned",
    "rotary=tiny",
    "rotary+gqa=tiny:model.attention=grouped,model.attention.kv_heads=1",
    "rotary+window=tiny:model.window=16,none",
    "model.width=64",
    "corpus.validation=0.15",
    "steps=250",
    "evaluations=3",
    "seeds=4",
    "rates=1,2,4,8",
)


RATES = (0.5, 1.0, 2.0)  # multiples of the learning rate, where none are given


@dataclass(frozen=True, kw_only=True)
class Comparison:
    match: Literal["parameters", "flops", "seconds", "steps"] = "parameters"  # what is equal
    seeds: int = 3  # trainings of each variant
    seed: int = 0  # the first of them
    seconds: float | None = None  # in steps, with match=seconds; the first variant's if none
    # rate: search the learning rate of each; auto: where a preset's was tuned for one of them
    tune: Literal["auto", "rate", "none"] = "auto"
    rates: tuple[float, ...] = ()  # multiples to search, RATES if none; a single one: no search
    level: float = 0.95  # of confidence, for all pairs together
    target: float | None = None  # a loss to reach; the best that all have reached if none
    evaluations: int = 8  # in each training, evenly
    turns: int = 9  # of each variant when times are measured
    sample: int = 200  # tokens each variant writes

    def __post_init__(self) -> None:
        for name in ("seeds", "evaluations", "turns", "sample"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; use 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; use 0 or more")
        if not 0.5 <= self.level < 1:
            raise ValueError(f"level is {self.level}; use 0.5 to less than 1, such as 0.95")
        if self.seconds is not None and self.match != "seconds":
            raise ValueError(f"seconds={self.seconds:g} needs match=seconds, not {self.match}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds is {self.seconds:g}; use more than 0")
        if any(not 0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates are {list(self.rates)}; multiples of the rate are above 0")
        if self.rates and self.tune == "none":
            raise ValueError(f"rates={','.join(map('{:g}'.format, self.rates))} needs tune=rate")
        if len(set(self.rates)) < len(self.rates):
            raise ValueError(f"rates are {list(self.rates)}; give each multiple once")


@dataclass(frozen=True)
class Variant:
    label: str
    preset: str
    words: tuple[str, ...]
    recipe: Recipe

    @property
    def spec(self) -> str:
        return f"{self.preset}:{','.join(self.words)}" if self.words else self.preset


@dataclass(frozen=True)
class Search:
    """Multiples of the learning rate that each variant is trained with, and why, or why not."""

    rates: tuple[float, ...]  # empty: nothing is searched
    why: str
    asked: bool = False
    single: float = 1.0  # the multiple that all are trained with where nothing is searched


@dataclass(frozen=True)
class Entry:
    """All that was asked for; the first variant is the measure of the others."""

    comparison: Comparison
    variants: Sequence[Variant]
    common: Sequence[str]  # words for all variants

    @property
    def search(self) -> Search:
        asked = self.comparison
        if asked.tune == "none":
            return Search((), "tune=none was asked for")
        if len(asked.rates) == 1:
            why = f"one multiple of the rate was given, × {asked.rates[0]:g}, and all take it"
            return Search((), why, asked=True, single=asked.rates[0])
        if asked.tune == "rate" or asked.rates:
            return Search(asked.rates or RATES, "it was asked for", asked=True)
        if any(word.startswith("optimiser") for one in self.variants for word in one.words):
            return Search((), "a variant names an optimiser of its own")
        models = [one.recipe.model for one in self.variants]
        tuned = [one.preset for one in self.variants if one.preset in TUNED]
        if not tuned:
            return Search((), "no preset here has a rate that was tuned for one of the variants")
        if all(model == models[0] for model in models):
            return Search((), "all variants have the same model")
        why = f"the rate of preset {tuned[0]} was tuned for {TUNED[tuned[0]]}"
        return Search(RATES, why)


def parse(words: Sequence[str]) -> Entry:
    """What words ask for, its variants in the order they are written."""
    lab = _lab_for([word for word in words if word != "lab"])
    spelled = [new for word in words for new in (lab if word == "lab" else [word])]
    settings: list[str] = []
    common: list[str] = []
    named: list[tuple[str, str, tuple[str, ...]]] = []  # label (empty: none yet), preset, words
    for word in spelled:
        label, spec = _as_variant(word)
        if spec:
            named.append((label, *_preset_and_words(spec)))
        elif _first(word) in COMPARISON:
            settings.append(word)
        else:
            common.append(word)
    if len(named) < 2:
        raise ValueError(
            f"{len(named) or 'no'} variant{'' if len(named) == 1 else 's'}: a comparison needs 2 "
            "or more, such as attnlab compare tiny tiny:model.positions=learned"
        )
    comparison = config.override(Comparison(), settings)
    variants = []
    for label, (given, preset, own) in zip(_labels(named), named, strict=True):
        try:
            recipe = launch.recipe_for(preset, [*common, *own])
        except ValueError as error:
            raise ValueError(f"{given or label}: {error}") from None
        variants.append(Variant(label, preset, own, recipe))
    _refuse_twins(variants)
    refuse_other_batches(variants)
    return Entry(comparison, variants, common)


def _lab_for(own: Sequence[str]) -> Sequence[str]:
    """LAB, without its rates where tune=none is asked for: words of one's own come first."""
    tune = [word.partition("=")[2].strip() for word in own if re.match(r"(--)?tune\s*=", word)]
    if tune[-1:] != ["none"]:
        return LAB
    return [word for word in LAB if not word.startswith("rates=")]


COMPARISON = [field.name for field in dataclasses.fields(Comparison)]
RECIPE = ["data", *(field.name for field in dataclasses.fields(Recipe))]


def _first(word: str) -> str:
    """`--model.width=3` -> "model"."""
    return config.split_word(word)[0][0]


def _as_variant(word: str) -> tuple[str, str]:
    """Its label and the rest if the word is a variant; two empty texts if it is a setting."""
    if word.startswith("--"):
        _refuse_unknown(word)
        return "", ""
    key, equals, value = word.partition("=")
    if not equals or ":" in key:
        return "", word
    if _first(word) in COMPARISON or _first(word) in RECIPE:
        return "", ""
    head = value.partition(":")[0].replace("_", "-")
    if head not in _presets() and ":" not in value:
        _refuse_unknown(word)
    if not re.fullmatch(r"[A-Za-z][\w+.-]*", key):
        raise ValueError(f"{key!r} is no label; use letters, digits and + - _ . after a letter")
    return key, value


def _refuse_unknown(word: str) -> None:
    if _first(word) not in (*COMPARISON, *RECIPE):
        near = registry.suggest(_first(word), [*COMPARISON, *RECIPE])
        raise ValueError(f"{word}: neither a setting nor a variant label=preset:…; {near}")


def _presets() -> list[str]:
    return [option.name for option in registry.options("preset")]


def _preset_and_words(spec: str) -> tuple[str, tuple[str, ...]]:
    name, colon, rest = spec.partition(":")
    known = [*_presets(), "lab"]
    if name.replace("_", "-") not in known:
        raise ValueError(f"no preset called {name!r}; {registry.suggest(name, known)}")
    if colon and not rest:
        raise ValueError(f"{spec!r} ends at its colon; write {name}:key=value,… or {name}")
    words = re.split(r",(?=[\w.-]+=)", rest) if rest else []
    return registry.find("preset", name).name, tuple(words)


def _labels(named: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    """Given, or short: the preset where presets differ, and what each word sets."""
    several = len({preset for _, preset, _ in named}) > 1
    labels = []
    for given, preset, words in named:
        short = [preset] if several or not words else []
        short += [_shortened(word) for word in words]
        labels.append(given or " ".join(short))
    slugs = [slug(label) for label in labels]
    for number, (given, preset, words) in enumerate(named):
        if slugs.count(slugs[number]) > 1:  # too short
            labels[number] = given or " ".join([preset, *words])
    for number, label in enumerate(labels):
        if slug(label) in [slug(before) for before in labels[:number]]:
            raise ValueError(
                f"two variants are called {label!r}; write another label: name={label}"
            )
    return labels


def _shortened(word: str) -> str:
    """`model.attention=grouped` -> "grouped", `model.window=16,none` -> "window=16,none"."""
    path, text = config.split_word(word)
    chosen = path[-1] in registry.kinds() and not re.fullmatch(r"none|[\d.,]*", text)
    return text if chosen else f"{path[-1]}={text}"


def plain(recipe: Recipe) -> Recipe:
    """Without what a comparison decides itself, or what changes nothing that it measures."""
    return dataclasses.replace(
        recipe,
        seed=0,
        evaluate_every=None,
        save_every=None,
        save_best=False,
        keep=1,
        patience=None,
        sample_every=None,
        tensorboard=False,
    )


def _refuse_twins(variants: Sequence[Variant]) -> None:
    for number, variant in enumerate(variants):
        for before in variants[:number]:
            if plain(variant.recipe) == plain(before.recipe):
                raise ValueError(
                    f"{before.label} and {variant.label} are the same; change something in one"
                )


def refuse_other_batches(variants: Sequence[Variant]) -> None:
    """All must read the same batches and be asked the same, or their losses mean nothing."""
    first = variants[0]
    for variant in variants:
        if variant.recipe.start is not None:
            raise ValueError(f"{variant.label} has start=…; variants train from the beginning")
        for key in ("corpus", "tokenizer", "objective", "context", "batch", "steps", "device"):
            name = "length" if key == "context" else key
            mine, wanted = getattr(variant.recipe, name), getattr(first.recipe, name)
            if mine != wanted:
                spelled = f"{key}={wanted}" if isinstance(wanted, int | str) else f"{key}=…"
                raise ValueError(
                    f"{variant.label} has another {key} than {first.label}; variants are compared "
                    f"on the same batches, so write {spelled} once, for all"
                )
