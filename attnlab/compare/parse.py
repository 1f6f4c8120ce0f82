"""The command line of a comparison, parsed: its variants and its settings.

    learned=tiny:model.positions=learned    a variant: label=preset:key=value,…
    tiny:model.window=16,none               the label and the words can be left out
    match=flops seeds=5                     how they are compared
    steps=200 model.width=64                for all variants; a variant's own words come after
    lab, mechanisms, mechanisms-gpu         a comparison that has a name: its variants and settings

A comma begins a new word only where a `key=` follows it.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnlab import config, files, registry
from attnlab.config import refusal, setting, settings
from attnlab.experiments.match import Budget
from attnlab.experiments.workspace import slug
from attnlab.presets import TUNED
from attnlab.training import launch
from attnlab.training.recipe import Recipe

# four answers to "what attends to what, and where": five minutes of work for one core, so about
# three on two idle cores. 15 % of the text is held out: with 5 % the error by text of learned
# positions is five times that by seeds. So short a training needs two to four times the rate of the
# preset's 800 steps. Its verdicts with four other blocks of seeds are in docs/benchmarks.md.
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


def _mechanisms(window: int) -> tuple[str, ...]:
    """What models of 2024 to 2026 do with attention, one thing at a time (docs/mechanisms.md)."""
    local = f"model.window={window},none"
    return (
        "rotary=tiny",
        "gqa=tiny:model.attention=grouped",
        f"window=tiny:{local}",
        f"window+sink=tiny:{local},model.sink=learned",
        "nope=tiny:model.positions.base=10000,none",
        "gate=tiny:model.gate=elementwise",
        "value-residual=tiny:model.value_residual=first",
        "differential=tiny:model.attention=differential",
        "latent=tiny:model.attention=latent,model.norm_heads=false",
        "gated-delta=tiny:model.attention=gated-delta,model.positions=none,model.norm_heads=false",
        "hybrid=tiny:model.attention=gated-delta,model.attention.full_every=2",
    )


# a context of 64 tokens and a minute of training each say little about large ones
MECHANISMS = (
    *_mechanisms(window=16),
    "model.width=64",
    "corpus.validation=0.15",
    "steps=250",
    "evaluations=3",
    "rates=1,2,4",
)
# 30 million tokens each, for one GPU and a text of as many or more: data=FOLDER
MECHANISMS_GPU = (
    *_mechanisms(window=128),
    "model.width=256",
    "model.depth=6",
    "model.context=512",
    "batch=32",
    "steps=1832",
    "dtype=bfloat16",
    "compile=true",
    "corpus.validation=0.02",
    "evaluations=4",
    "rates=1,2",
)
NAMED = {"lab": LAB, "mechanisms": MECHANISMS, "mechanisms-gpu": MECHANISMS_GPU}


FROM_NOTHING = "variants train from the beginning, made equal in size"
RATES = (0.5, 1.0, 2.0)  # multiples of the learning rate, where none are given


@settings
class ComparisonSettings:
    match: Budget = setting("parameters", about="what is equal for all variants")
    seeds: int = setting(3, low=1, about="trainings of each variant, with other random seeds")
    seed: int = setting(0, low=0, about="first of the random seeds")
    seconds: float | None = setting(
        None,
        above=0,
        none="as many as the first variant takes",
        about="seconds in training steps, with match=seconds",
    )
    tune: Literal["auto", "rate", "none"] = setting(
        "auto",
        about="rate: search the learning rate of each variant; auto: only where a preset's was "
        "tuned for one of them",
    )
    rates: tuple[float, ...] = setting(
        (),
        above=0,
        about=f"multiples of the learning rate to search; empty: {', '.join(map(str, RATES))}; "
        "a single one: no search",
    )
    level: float = setting(
        0.95, low=0.5, below=1, about="level of confidence, for all pairs together"
    )
    target: float | None = setting(
        None,
        none="the best that all have reached",
        about="loss to reach; steps until then are compared",
    )
    evaluations: int = setting(8, low=1, about="evaluations in each training, evenly spaced")
    turns: int = setting(9, low=1, about="timings of each variant")
    sample: int = setting(200, low=1, about="tokens each variant writes")

    def check(self) -> None:
        if self.seconds is not None and self.match != "seconds":
            raise refusal(self, "seconds", f"it needs match=seconds, not {self.match}")
        if self.rates and self.tune == "none":
            raise refusal(self, "rates", "tune=none searches no rates, so use tune=rate")
        if len(set(self.rates)) < len(self.rates):
            raise refusal(self, "rates", "give each multiple once")


@dataclass(frozen=True)
class Variant:
    label: str
    preset: str
    words: tuple[str, ...]
    recipe: Recipe

    @property
    def spec(self) -> str:
        return _format_variant(self.preset, self.words)


def _format_variant(preset: str, words: Sequence[str]) -> str:
    return f"{preset}:{','.join(words)}" if words else preset


@dataclass(frozen=True)
class Search:
    """Multiples of the learning rate to search for each variant, and why, or why not."""

    rates: tuple[float, ...]  # empty: nothing is searched
    why: str
    requested: bool = False
    single: float = 1.0  # the multiple for all variants where nothing is searched


@dataclass(frozen=True)
class Plan:
    """All that the command line asks for; the first variant is the measure of the others."""

    settings: ComparisonSettings
    variants: Sequence[Variant]
    common: Sequence[str]  # words for all variants

    @property
    def search(self) -> Search:
        tune, rates = self.settings.tune, self.settings.rates
        if tune == "none":
            return Search((), "tune=none was asked for")
        if len(rates) == 1:
            why = f"one multiple of the rate was given, × {rates[0]:g}, and all take it"
            return Search((), why, requested=True, single=rates[0])
        if tune == "rate" or rates:
            return Search(rates or RATES, "it was asked for", requested=True)
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


Named = tuple[str, str, tuple[str, ...]]  # label (empty: none was given), preset, words


def parse(words: Sequence[str]) -> Plan:
    """The variants in the order they are written, and the settings."""
    rest = [word for word in words if word not in NAMED]
    spelled = [new for word in words for new in (_named(word, rest) if word in NAMED else [word])]
    settings: list[str] = []
    common: list[str] = []
    named: list[Named] = []
    for word in spelled:
        label, spec = _as_variant(word)
        if spec:
            named.append((label, *_preset_and_words(spec)))
        elif _first(word) in SETTINGS:
            settings.append(word)
        else:
            common.append(word)
    if len(named) < 2:
        raise ValueError(
            f"{len(named) or 'no'} variant{'' if len(named) == 1 else 's'}: a comparison needs 2 "
            "or more, such as attnlab compare tiny tiny:model.positions=learned"
        )
    chosen = config.override(ComparisonSettings(), settings)
    variants = []
    for label, (given, preset, own) in zip(_labels(named), named, strict=True):
        try:
            recipe = launch.recipe_for(preset, [*common, *own])
        except ValueError as error:
            raise ValueError(f"{given or label}: {error}") from None
        variants.append(Variant(label, preset, own, recipe))
    _refuse_twins(variants)
    refuse_other_batches(variants)
    return Plan(chosen, variants, common)


def _named(name: str, own: Sequence[str]) -> Sequence[str]:
    """A comparison by its name, without its rates where the person writes tune=none."""
    tune = [word.partition("=")[2].strip() for word in own if re.match(r"(--)?tune\s*=", word)]
    if tune[-1:] != ["none"]:
        return NAMED[name]
    return [word for word in NAMED[name] if not word.startswith("rates=")]


SETTINGS = [field.name for field in dataclasses.fields(ComparisonSettings)]
RECIPE = ["data", *(field.name for field in dataclasses.fields(Recipe))]


def _first(word: str) -> str:
    """`--model.width=3` -> "model"."""
    return config.split_override(word)[0][0]


def _as_variant(word: str) -> tuple[str, str]:
    """Its label and the rest if the word is a variant; two empty texts if it is a setting."""
    if word.startswith("--"):
        _refuse_unknown(word)
        return "", ""
    key, equals, value = word.partition("=")
    if not equals or ":" in key:
        return "", word
    if _first(word) in SETTINGS or _first(word) in RECIPE:
        return "", ""
    head = value.partition(":")[0].replace("_", "-")
    if head not in _presets() and ":" not in value:
        _refuse_unknown(word)
    if not re.fullmatch(r"[A-Za-z][\w+.-]*", key):
        raise ValueError(f"{key!r} is no label; use letters, digits and + - _ . after a letter")
    return key, value


def _refuse_unknown(word: str) -> None:
    if _first(word) not in (*SETTINGS, *RECIPE):
        near = registry.suggest(_first(word), [*SETTINGS, *RECIPE], config.paths(Recipe()))
        raise ValueError(f"{word}: neither a setting nor a variant label=preset:…; {near}")


def _presets() -> list[str]:
    return [option.name for option in registry.options("preset")]


def _preset_and_words(spec: str) -> tuple[str, tuple[str, ...]]:
    name, colon, rest = spec.partition(":")
    known = [*_presets(), *NAMED]
    if files.is_file(Path(name) / "config.json"):
        raise ValueError(
            f"{name} is a folder of weights, and {FROM_NOTHING}: attnlab evaluate {name} data=… "
            f"measures it as it is, attnlab train PRESET start={name} trains it further"
        )
    if name.replace("_", "-") not in known:
        raise ValueError(f"no preset called {name!r}; {registry.suggest(name, known)}")
    if colon and not rest:
        raise ValueError(f"{spec!r} ends at its colon; write {name}:key=value,… or {name}")
    words = re.split(r",(?=[\w.-]+=)", rest) if rest else []
    return registry.find("preset", name).name, tuple(words)


def _labels(named: Sequence[Named]) -> list[str]:
    """Given, or short: the preset where presets differ, and the value of each word."""
    several = len({preset for _, preset, _ in named}) > 1
    labels = []
    for given, preset, words in named:
        short = [preset] if several or not words else []
        short += [_shorten(word) for word in words]
        labels.append(given or " ".join(short))
    slugs = [slug(label) for label in labels]
    for number, (given, preset, words) in enumerate(named):
        if slugs.count(slugs[number]) > 1:  # too short
            labels[number] = given or " ".join([preset, *words])
    for number, (label, (_, preset, words)) in enumerate(zip(labels, named, strict=True)):
        if slug(label) in [slug(before) for before in labels[:number]]:
            raise ValueError(
                f"two variants are called {label!r}; give this one another label, such as "
                f"second={_format_variant(preset, words)}"
            )
    return labels


def _shorten(word: str) -> str:
    """`model.attention=grouped` -> "grouped", `model.window=16,none` -> "window=16,none"."""
    path, text = config.split_override(word)
    chosen = path[-1] in registry.kinds() and not re.fullmatch(r"none|[\d.,]*", text)
    return text if chosen else f"{path[-1]}={text}"


def plain(recipe: Recipe) -> Recipe:
    """Without what the comparison itself sets, and what changes nothing that it measures."""
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
    """All must read the same batches and have the same targets, or their losses mean nothing."""
    first = variants[0]
    for variant in variants:
        if variant.recipe.start is not None:
            raise ValueError(
                f"{variant.label} has start=…, and {FROM_NOTHING}: to train weights further use "
                "attnlab train, to measure them attnlab evaluate"
            )
        for key in ("corpus", "tokenizer", "objective", "context", "batch", "steps", "device"):
            name = "length" if key == "context" else key
            mine, wanted = getattr(variant.recipe, name), getattr(first.recipe, name)
            if mine != wanted:
                spelled = f"{key}={wanted}" if isinstance(wanted, int | str) else f"{key}=…"
                raise ValueError(
                    f"{variant.label} has another {key} than {first.label}; variants are compared "
                    f"on the same batches, so write {spelled} once, for all"
                )
