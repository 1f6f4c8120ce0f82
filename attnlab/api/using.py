"""`attnlab.evaluate` and `attnlab.generate`: how good a trained model is, and what it writes."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.api.calling import calling, ticking, words_of
from attnlab.api.results import Shown
from attnlab.reports.report import Cell, Sample, Section, Table

Run = str | os.PathLike[str]  # a run's path, name, or preset for its newest; or a `Training`


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    path: Path  # of the checkpoint that was evaluated
    numbers: dict[str, float | int]  # loss, perplexity …; with questions, the accuracy
    skipped: tuple[str, ...] = ()  # checkpoints that were passed over, and why

    def __getitem__(self, name: str) -> float | int:
        return self.numbers[name]

    @property
    def loss(self) -> float:
        return self.numbers["loss"]

    def section(self) -> Section:
        rows: list[list[Cell]] = [
            [name.replace("_", " "), number] for name, number in self.numbers.items()
        ]
        return Section(
            heading=f"Evaluation of {self.path}",
            text="\n\n".join(f"skipped: {reason}" for reason in self.skipped),
            blocks=[Table(title="", columns=["measure", "value"], rows=rows)],
        )


def evaluate(
    run: Run,
    *words: str,
    predict: str | Path | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
    **settings: object,
) -> Evaluation:
    """Measure a model on its whole validation split, as `attnlab evaluate` does.

    If it answers questions, on those too; `predict` names a file for the answers to the unlabelled
    ones. data=PATH evaluates on another text or folder.
    """
    given = words_of(words, settings)
    with calling(["evaluate", os.fspath(run), *given]), ticking() as tick:
        from attnlab.training.examine import examine

        found = examine(
            os.fspath(run),
            given,
            root=Path(runs),
            device=device,
            predict=None if predict is None else Path(predict),
            tick=tick,
        )
    path, skipped = Path(found.pop("checkpoint")), tuple(found.pop("skipped", ()))
    return Evaluation(path, found, skipped)


@dataclass(frozen=True, repr=False)
class Texts(Shown):
    """Texts that a model has written, one for each prompt."""

    path: Path  # of the checkpoint that wrote them
    prompts: tuple[str, ...]
    texts: tuple[str, ...]  # without their prompts
    skipped: tuple[str, ...] = ()  # checkpoints that were passed over, and why
    rounding: str | None = None  # what is to be said where rounding may decide the text

    def __str__(self) -> str:
        """The prompts with their continuations."""
        both = zip(self.prompts, self.texts, strict=True)
        return "\n".join(prompt + text for prompt, text in both)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> str:
        return self.texts[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    @property
    def tables(self) -> list[Table]:
        rows = list(zip(self.prompts, self.texts, strict=True))
        return [Table(title="", columns=["prompt", "text"], rows=rows)]

    def section(self) -> Section:
        both = zip(self.prompts, self.texts, strict=True)
        samples = [Sample(title=repr(prompt), text=prompt + text) for prompt, text in both]
        notes = [f"skipped: {reason}" for reason in self.skipped]
        notes += [self.rounding] if self.rounding else []
        return Section(heading=f"Written by {self.path}", text="\n\n".join(notes), blocks=samples)


def generate(
    run: Run,
    prompt: str | Sequence[str],
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    exact: bool | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
) -> Texts:
    """Continue a prompt, or several side by side, as `attnlab generate` does.

    The same seed gives the same text. At temperature 0, if `exact`, it never depends on the batch;
    None: as the model's size allows, and `rounding` of the answer says where it does not.
    """
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    with calling(["generate", os.fspath(run)]), ticking() as tick:
        from attnlab.generate import Sampling, warn_of_rounding
        from attnlab.training.saved import open_saved

        sampling = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, exact=exact
        )
        saved = open_saved(os.fspath(run), Path(runs), device)
        written = 0

        def count(row: int, token: int) -> None:
            nonlocal written
            written += 1
            tick(f"{written:,} of {tokens * len(prompts):,} tokens written")

        texts = saved.write(prompts, tokens=tokens, sampling=sampling, on_token=count)
    rounding = warn_of_rounding(saved.model, sampling)
    return Texts(saved.folder, tuple(prompts), tuple(texts), tuple(saved.broken), rounding)
