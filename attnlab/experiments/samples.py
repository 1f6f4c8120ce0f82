"""Text that trained models write: all from one prompt, with the same random numbers."""

from collections.abc import Iterable
from typing import TypedDict

from attnlab import counter_rng
from attnlab.data.corpora import Corpus
from attnlab.generate import Sampling, generate
from attnlab.reports.report import Sample, Section
from attnlab.training.saved import Saved

TEMPERATURE = 0.8


class Samples(TypedDict):
    prompt: str
    seed: int  # of the models
    texts: dict[str, str]  # by model


def prompt_of(corpus: Corpus, length: int) -> str:
    """The first whole line of the held-out text; its beginning if it has no whole line."""
    held = next(corpus.pieces("validation"))
    line = held[held.find("\n", 0, len(held) // 2) + 1 :].lstrip() or held
    return line[:length]


def write(saved: Saved, prompt: list[int], tokens: int) -> str:
    """Text after the prompt; a model reads half its context and writes the other half, again and
    again, so that none works beyond the length it was trained on."""
    half = max(saved.recipe.length // 2, 1)
    text = list(prompt)
    while len(text) < len(prompt) + tokens:
        seed = counter_rng.number(saved.recipe.seed, "written", len(text))
        sampling = Sampling(temperature=TEMPERATURE, seed=seed)
        text += generate(saved.model, [text[-half:]], tokens=half, sampling=sampling)[0]
    return str(saved.tokenizer.decode(text[len(prompt) : len(prompt) + tokens]))


def write_all(models: Iterable[tuple[str, Saved]], prompt: str, seed: int, tokens: int) -> Samples:
    texts = {
        name: write(saved, saved.tokenizer.encode(prompt).tolist(), tokens)
        for name, saved in models
    }
    return {"prompt": prompt, "seed": seed, "texts": texts}


def section(samples: Samples) -> Section:
    return Section(
        heading="What they write",
        text=f"""All continue the same words of the held-out text, with the same random numbers,
        at temperature {TEMPERATURE}: {samples["prompt"]!r}. These are the models of seed
        {samples["seed"]}.""",
        blocks=[
            Sample(title=name, text=samples["prompt"] + text)
            for name, text in samples["texts"].items()
        ],
    )
