"""What repeats a failure by asking for outputs: each returns whether it fails, and what was seen.

Printed into scripts (`audit/repro/stage.py`), so it knows torch, and of this package only what is
printed with it. The tools that come first by name are made by the stage: `ask(x, padding)` and
`other(x, padding)` give outputs [b, t, e], `draw(batch, length, seed)` inputs, `tell(x, **given)`
outputs of code that is told more, `code` is the code itself.

Axes: b batch, t time, e width of the outputs, v vocabulary.
"""

import copy
import math
from typing import Any

import torch

from attnlab.audit.properties.packing import told
from attnlab.audit.repro.prelude import moved, replaced


def causality_fails(
    ask: Any,
    draw: Any,
    *,
    batch: int,
    length: int,
    first: int,
    last: int,
    factor: float,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Change the inputs from first to last: no output before them may move."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    if x.is_floating_point():  # large inputs show a mask that large scores beat
        x, other = x * factor, other * factor
    change = moved(ask(replaced(x, other, first, last)), ask(x))[:, :first].amax(0)
    size, at = float(change.max()), int(change.argmax())
    which = f"input {first} changes" if first == last else f"inputs {first} to {last} change"
    return size > tolerance * factor, f"output {at} moves by {size:.2g} when {which}, of {length}"


def window_fails(
    ask: Any,
    draw: Any,
    *,
    batch: int,
    length: int,
    output: int,
    input: int,
    wanted: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Change one input: the output moves if, and only if, it is among the last `wanted`."""
    x, size = draw(batch, length, seed), 0.0
    for other in range(3):  # one replacement might happen not to matter
        changed = replaced(x, draw(batch, length, seed + 100 + other), input, input)
        size = max(size, float(moved(ask(changed), ask(x))[:, output].max()))
    seen, allowed = size > tolerance, output - input < wanted
    what = f"moves by {size:.2g}" if seen else "does not move"
    rule = "inside" if allowed else "outside"
    text = f"output {output} {what} when input {input} changes, {rule} its {wanted} keys"
    return seen != allowed, text


def cache_fails(
    ask: Any,
    draw: Any,
    step: Any,
    new_cache: Any,
    *,
    batch: int,
    pieces: list[int],
    warm: bool,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Decode in pieces: the outputs are those of the whole text, also after another text."""
    length = sum(pieces)
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    for text in [other, x] if warm else [x]:
        whole, cache, start = ask(text), new_cache(), 0
        for size in pieces:
            end = start + size
            found = step(text[:, start:end], cache)[:, -size:]  # some give the last one only
            change = moved(found, whole[:, end - found.shape[1] : end]).amax(0)
            wrong = ~(change <= tolerance)
            if text is x and bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                name = "a second text" if warm else "the text"
                place = end - found.shape[1] + at
                seen = f"differs by {float(change[at]):.2g} at position {place}"
                return True, f"{name} in pieces of {pieces} {seen}"
            start = end
    return False, f"in pieces of {pieces} the outputs are those of the whole text"


def batch_fails(
    ask: Any, draw: Any, *, what: str, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """A row is the same beside other rows, alone, and in another order."""
    x = draw(batch, length, seed)
    together = ask(x)
    if what == "its neighbours change":
        others = torch.cat([x[:1], draw(batch, length, seed + 100)[1:]])
        change = moved(ask(others)[:1], together[:1])
    elif what == "it runs alone":
        change = moved(ask(x[:1]), together[:1])
    else:
        change = moved(ask(x.flip(0)).flip(0), together)
    size, at = float(change.max()), int(change.amax(0).argmax())
    return size > tolerance, f"a row's output {at} moves by {size:.2g} when {what}"


def padding_fails(
    ask: Any,
    draw: Any,
    *,
    what: str,
    side: str,
    batch: int,
    length: int,
    real: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Row 0 has so many real inputs, and padding on a side: its real outputs do not know of it."""
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    nothing = torch.zeros(batch, length, dtype=torch.bool)
    kept = slice(length - real, length) if side == "left" else slice(0, real)
    mask = nothing.clone()
    mask[0] = True
    mask[0, kept] = False
    if what == "a mask without padding is given":
        change = moved(ask(x, nothing), ask(x))
    elif what == "another row has padding":
        change = moved(ask(x, mask)[1:], ask(x)[1:])
    elif what == "padding is added":
        change = moved(ask(x, mask)[:1, kept], ask(x[:1, kept]))
    elif what == "it has padding":
        change = torch.where(ask(x, mask)[:1, kept].isnan().any(-1), torch.inf, 0.0)
    else:
        # not NaN: a weight of 0 times NaN is NaN in plain PyTorch, and nobody's mistake
        large = what == "large numbers stand in the padding" and x.is_floating_point()
        content = 1e3 * other if large else other
        changed = torch.where(mask if x.dim() == 2 else mask[..., None], content, x)
        change = moved(ask(changed, mask)[:1, kept], ask(x, mask)[:1, kept])
    size, at = float(change.max()), int(change.amax(0).argmax())
    text = f"real output {at} moves by {size:.2g} when {what}"
    return size > tolerance, f"{text} (padding on the {side})"


def behind_fails(
    ask: Any,
    draw: Any,
    step: Any,
    new_cache: Any,
    *,
    batch: int,
    length: int,
    real: int,
    steps: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Row 0 stands behind padding, and is decoded: a beginning, then so many single steps."""
    x, cache = draw(batch, length, seed), new_cache()
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, : length - real] = True
    sizes = [length - steps, *[1] * steps]
    pieces = zip(x.split(sizes, 1), padding.split(sizes, 1), strict=True)
    found = torch.cat([step(piece, cache, hidden) for piece, hidden in pieces], dim=1)
    change = moved(found[:1, length - real :], ask(x[:1, length - real :])).amax(0)
    size, at = float(change.max()), int(change.argmax())
    seen = f"output {at} of {real} differs by {size:.2g} from that of the text alone"
    return size > tolerance, f"decoded behind {length - real} of padding, {seen}"


def evaluation_fails(
    ask: Any, draw: Any, *, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Ask the same three times."""
    x = draw(batch, length, seed)
    before = ask(x)
    size = max(float(moved(ask(x), before).max()) for _ in range(3))
    return size > tolerance, f"identical calls in evaluation mode differ by {size:.2g}"


def finite_fails(
    ask: Any, draw: Any, *, batch: int, length: int, factor: float, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Every output is a number, however large the inputs are."""
    x = draw(batch, length, seed)
    out = ask(x * factor if x.is_floating_point() else x)
    wrong = (~torch.isfinite(out)).any(-1).nonzero().tolist()
    if not wrong:
        return False, f"every output is finite for inputs times {factor:g}"
    row, at = wrong[0]
    return True, f"output {at} of row {row} is not finite for inputs times {factor:g}"


def backends_fails(
    ask: Any,
    draw: Any,
    other: Any,
    *,
    what: str,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Compute the same in two ways, as it is and with row 0 padded from its middle on."""
    x, padding = draw(batch, length, seed), None
    kept = torch.ones(batch, length, dtype=torch.bool)
    if what != "as it is":
        kept[0] = torch.arange(length) < (length + 1) // 2
        kept[0] = kept[0].flip(0) if "left" in what else kept[0]
        padding = ~kept
    change = moved(ask(x, padding), other(x, padding)).masked_fill(~kept, 0)
    size, at = float(change.max()), int(change.amax(0).argmax())
    return size > tolerance, f"output {at} differs by {size:.2g} between the two ways ({what})"


def packing_fails(
    tell: Any,
    draw: Any,
    *,
    way: tuple[str, str, int],
    takes: list[str],
    what: str,
    text: int,
    pieces: list[int],
    causal: bool,
    batch: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Texts one after another in a row, told apart: the others change, or are left out."""
    lengths, total = tuple(pieces), sum(pieces)
    own = slice(sum(pieces[:text]), sum(pieces[: text + 1]))
    x, changed = draw(1, total, seed), draw(1, total, seed + 100)
    changed[:, own] = x[:, own]
    before = tell(x, **told(way, lengths, takes, causal, x.dtype))[:, own]
    if what == "alone":
        x, lengths, own = x[:, own], (pieces[text],), slice(0, pieces[text])
        after = tell(x, **told(way, lengths, takes, causal, x.dtype))
    else:
        after = tell(changed, **told(way, lengths, takes, causal, x.dtype))[:, own]
    change = moved(after, before)
    size, at = float(change.max()), int(change.amax(0).argmax())
    why = "it stands alone" if what == "alone" else "the texts beside it change"
    seen = f"output {at} of text {text} moves by {size:.2g} when {why}"
    return size > tolerance, f"{seen} (texts of {pieces} in a row, told by {way[0]})"


def precision_fails(
    ask: Any,
    draw: Any,
    code: Any,
    *,
    batch: int,
    length: int,
    most: float,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """In float32 against float64, and whether small changes show as small ones."""
    x = draw(batch, length, seed)
    weights = list(code.parameters()) if isinstance(code, torch.nn.Module) else []
    kept = [one.detach().clone() for one in weights]

    def nudged(part: float) -> Any:
        """Every input (of tokens: weight) larger or smaller by this part of it."""
        if x.is_floating_point():
            return ask(x * (1 + part * torch.where(draw(*x.shape[:2], 9) > 0, 1, -1)))
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for one in weights:
                signs = torch.randn(one.shape, generator=generator).sign().to(one)
                one.mul_(1 + part * signs)
        found = ask(x)
        with torch.no_grad():
            for one, before in zip(weights, kept, strict=True):
                one.copy_(before)
        return found

    exact, eps = ask(x), torch.finfo(torch.float32).eps
    size = float(exact.abs().max())
    if isinstance(code, torch.nn.Module):
        state = copy.deepcopy(code.state_dict())
        code.float()
    rough = ask(x.float() if x.is_floating_point() else x)
    if isinstance(code, torch.nn.Module):
        code.double().load_state_dict(state)
    lost = float(moved(rough, exact).max())
    for part in (2.0**-26, 2.0**-20, 2.0**-10):  # a rounded step makes small changes rough
        near = float(moved(nudged(part) + nudged(-part), 2 * exact).max())
        far = float(moved(nudged(8 * part) + nudged(-8 * part), 2 * exact).max())
        lost = max(lost, near if near > far / 16 else 0.0)
    explained = max(float(moved(nudged(2.0**-8), exact).max()) * eps * 2**8, eps * size)
    bits = math.log2(max(lost / explained, 1.0))
    text = f"in float32 {bits:.1f} bits are lost beyond what rounding the inputs costs"
    return bits > most, text


def loss_fails(
    ask: Any,
    draw: Any,
    code: Any,
    *,
    word: str,
    batch: int,
    length: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """The loss is a multiple of the cross-entropy of the next token, or of none near by."""
    shifts = {0: "its own", 1: "the next", 2: "the second next", -1: "the last"}
    ratios: dict[int, list[float]] = {shift: [] for shift in shifts}
    for text in range(5):
        x = draw(batch, length, seed + text)
        with torch.no_grad():
            found = code(x, **{word: x}) if word else code.loss(x)
        named = found.get("loss") if isinstance(found, dict) else getattr(found, "loss", None)
        values = [named] if named is not None else found if isinstance(found, tuple) else [found]
        loss = next(float(one) for one in values if torch.is_tensor(one) and one.numel() == 1)
        logits = ask(x).double()
        for shift in shifts:
            rows = logits[:, max(-shift, 0) : length - max(shift, 0)]
            labels = x[:, max(shift, 0) : length - max(-shift, 0)]
            wanted = torch.nn.functional.cross_entropy(rows.flatten(0, 1), labels.flatten())
            ratios[shift].append(loss / float(wanted))
    spread = {shift: max(all_) - min(all_) for shift, all_ in ratios.items()}
    best = min(spread, key=lambda shift: spread[shift] / abs(ratios[shift][0]))
    right = (1,) if not word else (0, 1)  # with labels, who calls may have shifted them
    near = spread[best] <= 1e-4 * abs(ratios[best][0])
    return near and best not in right, f"the loss compares an output with {shifts[best]} token"


def loss_padding_fails(
    ask: Any,
    draw: Any,
    code: Any,
    *,
    batch: int,
    length: int,
    real: int,
    seed: int,
    tolerance: float,
) -> tuple[bool, str]:
    """Tokens behind the end of row 0 change: a loss does not."""
    if real < 2:
        raise ValueError("a text of one token has no loss")
    x, other = draw(batch, length, seed), draw(batch, length, seed + 100)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, real:] = True
    changed = x.clone()
    changed[0, real + 1 :] = other[0, real + 1 :]  # the first may be the mark of the end
    with torch.no_grad():
        before, after = (float(code.loss(one, padding=padding)) for one in (x, changed))
    text = f"the loss moves from {before:.6g} to {after:.6g} when tokens in padding change"
    return not abs(after - before) <= 1e-5 * abs(before), text


def parts_fails(
    draw: Any, code: Any, *, ragged: bool, batch: int, length: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """The gradient of a batch is the same, worked through in one part or in two."""
    x = draw(batch, length, seed)
    how: dict[str, Any] = {}
    if ragged:
        ends = torch.tensor([length, *range(2, batch + 1)]).clamp(max=length)
        how["padding"] = torch.arange(length) >= ends[:, None]
    found = []
    for parts in (1, 2):
        code.zero_grad(set_to_none=True)
        code.accumulate(x, parts, **how)
        grads = [one.grad for one in code.parameters() if one.grad is not None]
        found.append(torch.cat([one.flatten() for one in grads]).double())
    code.zero_grad(set_to_none=True)
    off, size = float((found[0] - found[1]).abs().max()), float(found[0].abs().max())
    times = float(found[1].norm() / found[0].norm())
    rows = "rows of unequal length" if ragged else "rows of one length"
    text = f"the gradient of {rows} in two parts is off by {off:.2g}, {times:.3g} times as long"
    return not off <= 1e-5 * size, text


def spans_fails(
    code: Any, *, batch: int, length: int, seeds: int, seed: int, tolerance: float
) -> tuple[bool, str]:
    """Inputs and targets hold every token once, in order, and no place is always taken out."""
    text, removed = list(range(length)), [0] * length
    for number in range(seed, seed + seeds):
        found = code.corrupt(list(text), number)
        kept, taken = ([int(token) for token in one if int(token) in text] for one in found)
        if sorted(kept + taken) != text:
            return True, f"seed {number}: of {length} tokens some are lost, or stand twice"
        if kept != sorted(kept) or taken != sorted(taken):
            return True, f"seed {number}: tokens are no longer in the order of the text"
        removed = [count + (place in taken) for place, count in enumerate(removed)]
    always = [place for place, count in enumerate(removed) if count == seeds]
    if always:
        return True, f"of {length} positions {always} are taken out by all of {seeds} seeds"
    return False, f"texts of {length} tokens can be put back together, and no place is always out"
