"""A soft cap on scores, and its value: cap · tanh(score / cap) in place of a score.

Axes: b batch, h query heads, t time; query i, key j.

Scores of any size are made (`audit/probe/scores.py`), up to 256, and what weights say of them is
compared with the curves of caps. A cap bends scores before the mask: behind it a masked score of
−∞ would be −cap, and its key would be seen.
"""

from collections.abc import Iterator
from typing import Any

import torch

from attnlab.audit.contract import Finding
from attnlab.audit.probe.identify import SEEN_LENGTH, observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.scores import Bent, Cap, bend, bent_scores, exact, find_cap
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool

OTHERWISE = "scores are bent, and not as cap · tanh(score / cap)"
NEAR = 1e-3  # a measured cap is the declared one if it is so near, as a part
FAR = 1e-2  # a curve is another one if scores are off by this part


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    wanted: float | None,
    causal: bool,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """Scores are bent by the cap that is declared, in every layer, and masked ones stay masked."""
    x = draw(1 if heads is None else 2, length, seed)
    plain = observe(run, x, heads, watch)
    caps: list[Cap] = []
    for layer in range(len(plain)):
        bent = bent_scores(run, x, heads, watch, causal, plain, layer)
        cap = find_cap(bent)
        if wanted is not None:
            text = other_curve(bent, cap, wanted)
            if text:
                return True, text, cap and cap.value
        if cap is None:
            raise CannotTell(OTHERWISE)
        if cap.value is not None and bent.later:
            text = f"with scores of up to {cap.tried:.3g} a query gives {bent.later:.2g} to a key"
            text += f" after it: the mask comes before the cap, which makes {-cap.value:.4g} of it"
            return True, text, cap.value
        caps.append(cap)
    values = [cap.value for cap in caps]
    known = [one for one in values if one is not None]
    if not known:
        tried, beyond = min(cap.tried for cap in caps), min(cap.beyond for cap in caps)
        text = f"no soft cap: scores of up to {tried:.3g} are not bent"
        return False, f"{text} (one above {beyond:.2g} would not be seen)", None
    error = max(cap.error for cap in caps)
    if len(known) == len(values) and max(known) - min(known) <= 2 * error:
        text = f"a soft cap of {exact(known[0], error)} (± {error:.1g})"
        measured: Any = known[0]
    else:
        shown = ("none" if one is None else exact(one, error) for one in values)
        text = f"soft caps of {', '.join(shown)} (± {error:.1g}) by layer"
        measured = values
    return False, f"{text}, measured with scores of up to {caps[0].tried:.3g}", measured


def other_curve(bent: Bent, cap: Cap | None, wanted: float) -> str:
    """How weights are not those of the cap that is declared; empty where they may be."""
    known = None if cap is None else cap.value
    if known is not None and abs(known / wanted - 1) <= NEAR:
        return ""
    # another bend may be that of a cap on the sum of score and bias
    unclear = bent.off(wanted) <= FAR or (cap is None and bent.biased)
    if known is None and unclear:
        return ""
    score, other, seen = torch.cat([torch.stack(one) for one in bent.curves], -1)
    at = int((seen - bend(score, wanted) + bend(other, wanted)).abs().argmax())
    one, two = bend(score[at], wanted), bend(other[at], wanted)
    apart = f"two scores of {float(score[at]):.3g} and {float(other[at]):.3g}"
    right = f"are as if {abs(float(seen[at])):.3g} apart, and with a cap of {wanted:.6g}"
    text = f"{apart} {right} they are {abs(float(one - two)):.3g} apart"
    if cap is None:
        return f"{text}; {OTHERWISE}"
    what = "no cap is seen" if cap.value is None else f"the cap is {exact(cap.value, cap.error)}"
    return f"{text}; {what}"


class SoftCap(Property):
    """Scores of up to 256 are made, and weights are held to those of cap · tanh(score / cap).

    Needs: a look inside.
    Fails: another cap than declared, in any layer; declared causal: a mask that comes before the
      cap.
    """

    name = "soft-cap"
    field = "soft_cap"

    def cases(self, probe: Probe) -> Iterator[Case]:
        causal = bool(probe.contract.causal)
        wanted = self.declared(probe)
        yield self.case(probe, fails, wanted=wanted, causal=causal, length=SEEN_LENGTH)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        _, sentence, measured = tried[-1][1]
        if measured is None and self.declared(probe) is None:
            return self.finding("not applicable", sentence)
        if measured is None:  # declared so high that what was tried does not bend
            return self.finding("cannot tell", sentence)
        return self.finding("pass", sentence, measured=measured)
