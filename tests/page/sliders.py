"""How long a control of the Claims view waits for its first answer; run this file to see.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv/bin/python tests/page/sliders.py [CLAIM…]

Every slider stands at both ends and in the middle, every switch and choice at all its values, with
the knob and without it, after the claim was run as it stands. Of a few rounds, each with nothing
kept from the one before, the quickest counts: the others waited for a busy neighbour.
"""

import sys
import tempfile
import time
from pathlib import Path

from attnlab import registry
from attnlab.page.claims import Claims, controls, run
from attnlab.theory import catalogue

ROUNDS = 3


def moves(name):
    """Requests that move one control; the seed has no slider."""
    for one in controls(registry.load("claim", name)):
        for value in values(one) if one["name"] != "seed" else []:
            for knob in (False, True):
                yield {"settings": {one["name"]: value}, "knob": knob}


def values(setting):
    low, high = setting["low"], setting["high"]
    if low is None:
        return setting["choices"] or ([False, True] if setting["kind"] == "bool" else [])
    if setting["kind"] == "float":
        return [low, (low + high) / 2, high]
    middle = (low + high) // 4 * 2  # even, since some take nothing else
    return [low, middle, high] + ([None] if setting["kind"] == "int?" else [])


def waited(claims, name, move):
    """Processor seconds of an answer, where nothing is kept but what the page shows at first."""
    for module in [one for key, one in sys.modules.items() if key.startswith("attnlab.theory")]:
        for one in vars(module).values():
            getattr(one, "cache_clear", int)()
    for knob in (False, True):
        run(claims.experiment(name, {"knob": knob}))
    experiment = claims.experiment(name, move)
    began = time.thread_time()
    run(experiment)
    return time.thread_time() - began


def slowest(claims, name, rounds=ROUNDS):
    """The seconds and the move that waits longest; a value that the claim refuses does not."""
    found = []
    for move in moves(name):
        try:
            found.append((min(waited(claims, name, move) for _ in range(rounds)), str(move)))
        except ValueError:
            continue
    return max(found)


def main(names):
    with tempfile.TemporaryDirectory() as folder:
        for name in names or catalogue.names(quick=True):
            seconds, move = slowest(Claims(Path(folder)), name)
            print(f"{name:32} {1000 * seconds:4.0f} ms  {move}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
