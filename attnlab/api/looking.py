"""`attnlab.attention`: who attends to whom in a text, in every layer and head of a trained model.

Axes: l layers, h heads, t tokens.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.api.calling import calling, ticking
from attnlab.api.results import Shown
from attnlab.api.using import Run
from attnlab.errors import Error
from attnlab.reports.report import Cell, Section, Table
from attnlab.reports.weights import drawing

if TYPE_CHECKING:
    import numpy as np

AXES = "rows: tokens that attend; columns: tokens that are attended to"
SMALL, LARGE = 120, 420  # pixels across: of a head among all, of one alone


@dataclass(frozen=True, repr=False)
class Attention(Shown):
    """The weights of a model that has read a text; `.head(layer, head)` is one map of them."""

    path: Path  # of the checkpoint
    tokens: tuple[str, ...]
    weights: "np.ndarray[Any, Any]"  # [l, h, t, t]: row i is how much token i attends to each token
    next: tuple[tuple[str, float], ...]  # the likeliest next tokens, with their probabilities

    def head(self, layer: int, head: int) -> "Head":
        layers, heads = self.weights.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise Error(
                f"layer {layer}, head {head}: this model has layers 0 to {layers - 1} and heads 0 "
                f"to {heads - 1}"
            )
        return Head(self.path, self.tokens, layer, head, self.weights[layer, head])

    def section(self) -> Section:
        rows: list[list[Cell]] = [
            [layer, head, *_strongest(self.tokens, one)]
            for layer, heads in enumerate(self.weights)
            for head, one in enumerate(heads)
        ]
        columns = ["layer", "head", "largest weight", "from", "to"]
        likely = ", ".join(f"{token!r} {share:.2f}" for token, share in self.next)
        return Section(
            heading=f"Attention of {self.path.parent.parent.name}",
            text=f"{len(self.tokens)} tokens. Likeliest to come next: {likely}.",
            blocks=[Table(title="Heads", columns=columns, rows=rows)],
        )

    def _more_html(self) -> str:
        maps = [
            drawing(one.tolist(), f"layer {layer}, head {head}", size=SMALL)
            for layer, heads in enumerate(self.weights)
            for head, one in enumerate(heads)
        ]
        return f'<div class="heads">{"".join(maps)}</div>'


@dataclass(frozen=True, repr=False)
class Head(Shown):
    """One head: row i is how much token i attends to each token."""

    path: Path
    tokens: tuple[str, ...]
    layer: int
    number: int
    weights: "np.ndarray[Any, Any]"  # [t, t]

    def section(self) -> Section:
        return Section(heading=f"Layer {self.layer}, head {self.number}", text=f"of {self.path}")

    @property
    def tables(self) -> list[Table]:
        """A row for each token that attends, a column for each that is attended to."""
        names = [f"{place} {token}" for place, token in enumerate(self.tokens)]
        rows: list[list[Cell]] = [
            [name, *map(float, row)] for name, row in zip(names, self.weights, strict=True)
        ]
        return [Table(title="", columns=["token", *names], rows=rows)]

    def __repr__(self) -> str:
        lines = [f"layer {self.layer}, head {self.number} of {self.path}"]
        for place, (token, row) in enumerate(zip(self.tokens, self.weights, strict=True)):
            most = int(row.argmax())
            lines.append(
                f"  {place:3} {token!r:12} attends most to {most:3} {self.tokens[most]!r:12} "
                f"{row[most]:.3f}"
            )
        return "\n".join(lines)

    def _more_html(self) -> str:
        return drawing(self.weights.tolist(), AXES, size=LARGE, tokens=self.tokens)


def _strongest(tokens: tuple[str, ...], weights: "np.ndarray[Any, Any]") -> list[Cell]:
    """The largest weight of a head, not counting the first token, which can attend to nothing
    else."""
    if len(tokens) == 1:
        return [float(weights[0, 0]), repr(tokens[0]), repr(tokens[0])]
    place = int(weights[1:].argmax())
    i, j = 1 + place // len(tokens), place % len(tokens)
    return [float(weights[i, j]), f"{i} {tokens[i]!r}", f"{j} {tokens[j]!r}"]


def attention(run: Run, text: str, *, runs: str | Path = "runs", device: str = "auto") -> Attention:
    """The attention weights of a trained model over a text of one's own: what the page shows.

    attnlab.attention(run, "the quick brown fox").head(1, 0)
    """
    with calling(), ticking() as tick:
        import numpy as np

        from attnlab.page.inspection import MOST_TOKENS, read, weights
        from attnlab.training.saved import open_saved

        tick("opening the model")
        saved = open_saved(os.fspath(run), Path(runs), device)
        ids = saved.tokenizer.prompt(text).tolist()
        if not ids:
            raise ValueError("the text is empty; give at least one character")
        if len(ids) > MOST_TOKENS:
            raise ValueError(f"the text has {len(ids)} tokens; use {MOST_TOKENS} or fewer")

        def name(token: int) -> str:
            return str(saved.tokenizer.decode([token]))

        tick("reading the text")
        *_, found = read(saved.model, ids, [name(token) for token in ids])
        assert found is not None
        if found.absent:
            raise ValueError(found.absent)
        layers = range(len(found.layers))
        every = np.stack([weights(found, layer).float().cpu().numpy() for layer in layers])
    return Attention(
        path=saved.folder,
        tokens=tuple(found.tokens),
        weights=every,
        next=tuple((name(one["id"]), one["probability"]) for one in found.next[:5]),
    )
