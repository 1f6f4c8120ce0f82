"""A step with a large vocabulary: its time and memory with the logits in chunks and all at once.

python docs/vocabulary.py [width=256] [depth=4] [vocabulary=50304] [context=512] [batch=8] [turns=5]

Both take the same step in turns, on the CPU, with random tokens; then the peak of each is measured.
"""

import json
import sys

import torch

from attnlab import config
from attnlab.bench.measure import take_turns, usual_peak
from attnlab.data.batches import Batch
from attnlab.models import loss
from attnlab.models.transformer import TransformerSettings
from attnlab.training.optim import AdamW
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.step import Stepper

SIZES = {"width": 256, "depth": 4, "vocabulary": 50_304, "context": 512, "batch": 8, "turns": 5}


def main(words: list[str]) -> None:
    sizes = SIZES | {name: int(value) for name, value in (word.split("=") for word in words)}
    names = ("width", "depth", "vocabulary", "context")
    settings = config.override(TransformerSettings(), [f"{name}={sizes[name]}" for name in names])
    here, chunked = World(0, 1, torch.device("cpu")), loss.LARGE["cpu"]
    torch.manual_seed(0)
    model = settings.build()
    recipe = Recipe(model=settings, batch=sizes["batch"], optimiser=AdamW(), device="cpu")
    stepper = Stepper(model, recipe.optimiser.build(model), recipe, here)
    batch = [
        Batch(*torch.randint(sizes["vocabulary"], (2, sizes["batch"], sizes["context"])).unbind())
    ]

    def step(large: int) -> None:
        loss.LARGE["cpu"] = large
        stepper.take(0, batch)

    ways = {"in chunks": lambda: step(chunked), "at once": lambda: step(1 << 62)}
    times = take_turns(ways, here.device, sizes["turns"], patience=200)
    peaks = {name: usual_peak(run, here.device, 3) for name, run in ways.items()}
    milliseconds = {name: round(one.median) for name, one in times.items()}
    threads = torch.get_num_threads()
    print(json.dumps({**sizes, "threads": threads, "ms": milliseconds, "peak": peaks}))


if __name__ == "__main__":
    main(sys.argv[1:])
