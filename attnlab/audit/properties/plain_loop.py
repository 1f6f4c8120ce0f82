"""A plain decoding loop: the cache is handed back and no positions, and the text still goes on.

For models that count positions by themselves, as those of `transformers`.
"""

from collections.abc import Callable, Iterator

from torch import Tensor

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, movement

LENGTH, STEPS = 7, 3  # within any window of a tiny model: what lies beyond is for the cache


def fails(
    run: Tool,
    draw: Tool,
    loop: Callable[[Tensor, int], Tensor | None],
    *,
    batch: int,
    length: int,
    steps: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Decode so many single steps in a plain loop: the outputs are those of the whole text."""
    x = draw(batch, length, seed)
    found = loop(x, length - steps)
    if found is None:
        return False, "it gives no cache back", None
    change = movement(found, run(x)).amax(0)
    size, at = float(change.max()), int(change.argmax())
    text = f"decoded with a cache and no positions, output {at} of {length} moves by {size:.2g}"
    return size > tolerance, text, size


class PlainLoop(Property):
    """Transformers only: the cache is handed back, and no positions.

    Needs: a cache, positions.
    Fails: a text that moves.
    """

    name = "plain loop"

    def excuse(self, probe: Probe) -> Finding | None:
        if not (probe.subject.caches and probe.subject.placed):
            return self.finding("not applicable", "it has no cache, or takes no positions")
        return super().excuse(probe)

    def cases(self, probe: Probe) -> Iterator[Case]:
        yield self.case(probe, fails, batch=2, length=LENGTH, steps=STEPS)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        (_, (_, sentence, off)) = tried[0]
        if off is None:
            return self.finding("not applicable", sentence)
        return self.finding("pass", "with a cache and no positions a text goes on", measured=off)
