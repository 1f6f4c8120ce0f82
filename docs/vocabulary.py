"""A large vocabulary: processor time and memory with the logits in chunks and all at once.

python docs/vocabulary.py [width=256] [depth=4] [vocabulary=50304] [context=512] [batch=8] [turns=5]
python docs/vocabulary.py loss [the same]

First a training step of a transformer; with `loss` only the loss and its gradients, by the chunks
of models/loss.py, by those of F.linear_cross_entropy, where PyTorch has it, and at once. On the
CPU, one thread, random tokens. All take turns; the first, in which memory is first used, does not
count. Then the peak of each is measured.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from attnlab import config
from attnlab.bench.measure import usual_peak
from attnlab.data.batches import Batch
from attnlab.models import loss
from attnlab.models.transformer import TransformerSettings
from attnlab.training.optim import AdamW
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.step import Stepper

SIZES = {"width": 256, "depth": 4, "vocabulary": 50_304, "context": 512, "batch": 8, "turns": 5}
CPU = torch.device("cpu")
Ways = dict[str, Callable[[], object]]


def steps(sizes: dict[str, int]) -> Ways:
    names = ("width", "depth", "vocabulary", "context")
    settings = config.override(TransformerSettings(), [f"{name}={sizes[name]}" for name in names])
    model = settings.build()
    recipe = Recipe(model=settings, batch=sizes["batch"], optimiser=AdamW(), device="cpu")
    stepper = Stepper(model, recipe.optimiser.build(model), recipe, World(0, 1, CPU))
    text = torch.randint(sizes["vocabulary"], (2, sizes["batch"], sizes["context"]))
    batch = [Batch(*text.unbind())]

    def step(large: int) -> None:
        loss.LARGE["cpu"] = large
        stepper.take(0, batch)

    return {"in chunks": lambda: step(0), "at once": lambda: step(1 << 62)}


def losses(sizes: dict[str, int]) -> Ways:
    rows, vocabulary = sizes["batch"] * sizes["context"], sizes["vocabulary"]
    x = torch.randn(rows, sizes["width"], requires_grad=True)
    head = nn.Linear(sizes["width"], vocabulary, bias=False)
    targets = torch.randint(vocabulary, (rows,))

    def take(found: torch.Tensor) -> list[torch.Tensor]:
        return [found.detach(), *torch.autograd.grad(found, [x, head.weight])]

    ways: Ways = {
        "in chunks": lambda: take(loss.head_loss(x, head, targets)),
        "at once": lambda: take(F.cross_entropy(head(x), targets, reduction="sum")),
    }
    if hasattr(F, "linear_cross_entropy"):
        chunk = max(loss.CHUNK["cpu"] // (4 * vocabulary), 1)
        for name, size in (("PyTorch's, the same chunks", chunk), ("PyTorch's, its own", None)):
            options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size)
            ways[name] = lambda options=options: take(
                F.linear_cross_entropy(x, head.weight, targets, reduction="sum", options=options)
            )
    return ways


def seconds(ways: Ways, turns: int) -> dict[str, list[float]]:
    """Of processor time: the median, and the least and most of all turns."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        order = list(ways)
        random.Random(turn).shuffle(order)
        for name in order:
            start = time.process_time()
            ways[name]()
            spent[name].append(time.process_time() - start)
    counted = {name: one[1:] for name, one in spent.items()}
    return {name: [statistics.median(o), min(o), max(o)] for name, o in counted.items()}


def main(words: list[str]) -> None:
    alone = words[:1] == ["loss"]
    pairs = [word.split("=") for word in words[alone:]]
    sizes = SIZES | {name: int(value) for name, value in pairs}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ways = (losses if alone else steps)(sizes)
    times = seconds(ways, sizes["turns"])
    peaks = {name: usual_peak(run, CPU, 3) for name, run in ways.items()}
    ratios = {name: times[name][0] / times["at once"][0] for name in ways}
    print(json.dumps({**sizes, "seconds": times, "ratio": ratios, "peak": peaks}))


if __name__ == "__main__":
    main(sys.argv[1:])
