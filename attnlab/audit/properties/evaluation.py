"""Evaluation mode: the same inputs give the same outputs, without dropout or state that stays."""

from collections.abc import Iterator

from attnlab.audit.contract import Finding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import Result, Tool, movement, run_seeded


def fails(run: Tool, draw: Tool, *, batch: int, length: int, seed: int, tolerance: float) -> Result:
    """Run the same inputs again, and with other random seeds: the outputs are equal."""
    x = draw(batch, length, seed)
    before = run(x)
    size = max(float(movement(run(x), before).max()) for _ in range(3))
    if size > tolerance:
        return True, f"identical calls in evaluation mode differ by {size:.2g}", size
    size = max(float(movement(run_seeded(run, x, one), before).max()) for one in (1, 2, 3))
    text = f"it draws random numbers in evaluation mode: by the seed outputs differ by {size:.2g}"
    return size > tolerance, text, size


class Evaluation(Property):
    """Four identical calls, and three with other random seeds.

    Fails: a difference beyond the order of sums in float32.
    """

    name = "evaluation"
    alike = True

    def tolerance(self, probe: Probe) -> float:
        return 0.0  # it is itself what tolerances are made of

    def excuse(self, probe: Probe) -> None:
        return None

    def cases(self, probe: Probe) -> Iterator[Case]:
        for length in (7, 23):
            how = {"batch": 2, "length": length, "tolerance": probe.allowed_noise}
            yield self.case(probe, fails, **how)

    def run(self, probe: Probe, case: Case) -> Result:
        """The probe has made the same calls, for its tolerances: where they agree, that is it.

        Where they do not, the check says how; what it no longer sees was so all the same.
        """
        size = max(probe.noise, probe.chance)
        if size <= case.tolerance:
            return False, "identical calls agree, whatever the random seed", size
        result = super().run(probe, case)
        if result[0] or case.sizes["length"] != probe.usual:  # a later length may show it
            return result
        text = f"identical calls differed by {size:.2g} before, and agree now"
        return True, f"{text}: what it does depends on what it ran before", size

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        worst = max(size for _, (_, _, size) in tried)
        detail = "identical calls give identical outputs, whatever the random seed"
        return self.finding("pass", detail, measured=worst)
