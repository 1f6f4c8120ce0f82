"""Packed documents: several in one row, told apart by segments, against each one alone.

Axes in the formulas: documents x₁, x₂, … stand one after another in a row; f is a transformer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnlab import counter_rng, registry
from attnlab.attention.heads import Grouped
from attnlab.config import setting, settings
from attnlab.kernels.mask import Segments
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.reports.report import Picture, Table
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import Array, normal, random_module

VOCABULARY, WIDTH, WINDOW = 11, 16, 5  # every second layer has a window
SCHEMES = ("none", "learned", "sinusoidal", "rotary", "alibi")


@dataclass(frozen=True)
class Row:
    """Documents in a row."""

    lengths: list[int]
    tokens: Tensor  # [1, t]

    def run(self, model: Transformer, segments: bool, anew: bool) -> Tensor:
        """Logits of the row; `anew`: positions begin at 0 in each document."""
        counted = torch.arange(len(self.lengths))
        numbers = counted.repeat_interleave(torch.tensor(self.lengths))[None]
        at = torch.arange(numbers.shape[1])[None]
        positions = Segments(numbers, numbers).positions() if anew else at
        return model(self.tokens, positions=positions, segments=numbers if segments else None)

    def run_alone(self, model: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits of each document in a row of its own, side by side."""
        documents = self.tokens.split(self.lengths, dim=1)
        return torch.cat([model(one) for one in documents], dim=1)


@settings
class PackingIsOneByOne(Claim):
    segments: bool = setting(True, about="tell documents of a row apart")
    anew: bool = setting(True, about="positions begin anew in each document")
    documents: int = setting(5, low=2, high=12, about="documents in a row")
    longest: int = setting(13, low=2, high=40, about="tokens of the longest document")
    rows: int = setting(4, low=1, high=20, about="rows with other documents", metadata={"live": 1})

    about = About(
        statement="Documents packed into one row with segments, their positions beginning anew, "
        "give the outputs and the gradients of the documents run one by one, and no output moves "
        "with a token of another document. Without segments outputs do.",
        formula="f([x₁, x₂, …]) = [f(x₁), f(x₂), …]\n∂f(xᵢ)/∂xⱼ = 0 for i ≠ j",
        derivation="""Two parts of a transformer know where a token stands: attention and positions.
            All else, such as embeddings, norms and feed-forward layers, does one and the same with
            every token.

            With segments a query attends to a key only if both have the same number. So the softmax
            of a query runs over the keys that it has when its document is alone. Positions that
            count from the beginning of each document are the same, too. By induction over the
            layers all vectors of a document are those of the document alone, and so is every
            function of them, such as a loss. The gradient of a sum of losses is the sum of their
            gradients, as it is when documents are run one by one. What stands in another document
            occurs in none of these formulas, so the derivative by it is 0, and not only nearly.

            Without segments the first token of the second document has a whole document before
            it. Positions that begin anew do not change that: they say where a token stands in its
            document, and not which tokens are in it.""",
        expected="holds",
        knob=Knob("no segments", {"segments": False}),
        remark="With segments, positions that run on through the row do no harm where they only "
        "count distances (rotary, ALiBi). Where they are vectors of their own they do: the table "
        "has both.",
    )

    def run(self) -> Evidence:
        rows = [self._row(number) for number in range(self.rows)]
        models = {scheme: self._model(scheme) for scheme in SCHEMES}
        found = np.array(
            [
                [self._differences(model, row, self.segments, self.anew) for row in rows]
                for model in models.values()
            ]
        )
        moved = np.stack([self._influences(models["rotary"], row) for row in rows])
        lengths = ", ".join(map(str, rows[0].lengths))
        own = np.eye(self.documents, dtype=bool)
        return Evidence(
            kind="construction",
            trials=len(models) * self.rows * self.documents,
            measures=[
                Measure(
                    "difference of logits, of the largest", float(found[..., 0].max()), "≤", EQUAL
                ),
                Measure("of gradients, of the largest", float(found[..., 1].max()), "≤", EQUAL),
                Measure(
                    "pairs of which one moves the other", int((moved[:, ~own] > 0).sum()), "=", 0
                ),
                Measure("least that a document moves itself", float(moved[:, own].min()), ">", 0),
            ],
            picture=Picture(
                title=f"Documents of {lengths} tokens: which moves which",
                rows=np.where(moved[0] > 0, moved[0].astype(object), np.array(None)).tolist(),
                x="document whose tokens change",
                y="document whose outputs move",
                note="The largest derivative; empty: exactly 0.",
            ),
            details=[self._table(models, rows[0])],
        )

    def _row(self, number: int) -> Row:
        """The first document has one token, the second is the longest."""
        dice = counter_rng.uniform(self.seed, f"lengths {number}", np.arange(self.documents))
        lengths = 1 + np.floor(dice * self.longest).astype(int)
        lengths[:2] = 1, self.longest
        dice = counter_rng.uniform(self.seed, f"tokens {number}", np.arange(lengths.sum()))
        return Row(lengths.tolist(), torch.from_numpy(np.floor(dice * VOCABULARY)).long()[None])

    def _model(self, scheme: str) -> Transformer:
        described = TransformerSettings(
            vocabulary=VOCABULARY,
            context=self.documents * self.longest,
            width=WIDTH,
            depth=2,
            attention=Grouped(heads=4, kv_heads=2),
            positions=registry.load("positions", scheme)(),
            window=(None, WINDOW),
        )
        return random_module(described.build, self.seed, "transformer").requires_grad_()

    def _differences(
        self, model: Transformer, row: Row, segments: bool, anew: bool
    ) -> tuple[float, float]:
        """Of logits, and of the gradients of a random sum of them: packed from one by one."""
        packed, alone = row.run(model, segments, anew), row.run_alone(model)
        by = torch.from_numpy(normal(self.seed, "by", *alone.shape))
        parameters = list(model.parameters())
        ours, theirs = (
            torch.cat([one.flatten() for one in torch.autograd.grad((x * by).sum(), parameters)])
            for x in (packed, alone)
        )
        return _apart(packed, alone), _apart(ours, theirs)

    def _influences(self, model: Transformer, row: Row) -> Array:
        """Entry (i, j): the largest derivative of document i's outputs by tokens of document j."""
        inputs: list[Tensor] = []

        def keep(module: object, given: object, out: Tensor) -> Tensor:
            inputs.append(out.detach().requires_grad_())
            return inputs[0]

        handle = model.embed.register_forward_hook(keep)
        logits = row.run(model, self.segments, self.anew)
        handle.remove()
        by = torch.from_numpy(normal(self.seed, "by", *logits.shape))
        found = []
        for part in (logits * by).split(row.lengths, dim=1):
            (grad,) = torch.autograd.grad(part.sum(), inputs, retain_graph=True)
            found.append([float(one.abs().max()) for one in grad.split(row.lengths, dim=1)])
        return np.array(found)

    def _table(self, models: dict[str, Transformer], row: Row) -> Table:
        ways = {
            "segments, anew": (True, True),
            "segments, running on": (True, False),
            "no segments, anew": (False, True),
            "no segments, running on": (False, False),
        }
        rows: list[list[str | float]] = []
        with torch.no_grad():
            for scheme, model in models.items():
                alone = row.run_alone(model)
                rows.append([scheme, *(_apart(row.run(model, *w), alone) for w in ways.values())])
        return Table(
            title="Logits of packed documents: largest difference from one by one, of the largest",
            columns=["positions", *ways],
            rows=rows,
            note="Of the first row. Below 1e-12 it is rounding.",
        )


def _apart(found: Tensor, want: Tensor) -> float:
    return float((found - want).detach().abs().max() / want.detach().abs().max())
