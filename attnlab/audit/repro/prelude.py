"""What the audit and its scripts share: loading code, preparing weights, drawing and comparing.

Both make weights and inputs by these functions, so a script meets the numbers the audit met. They
are printed into scripts as they stand, so they know torch and nothing of this package.

Axes: b batch, t time.
"""

import importlib.util
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

# what code calls the cache that it takes, or gives back
CACHES = re.compile(r"(\w+_)?(past|caches?|kv|presents?)(_\w+)?|states?|mems|inference_params")

Tool = Callable[..., Tensor]  # what a check calls: see audit/probe/tools.py
Shape = tuple[int, int, int]  # query heads, key/value heads and their width
Result = tuple[bool, str, Any]  # whether a check fails, what was seen, what was measured


class CannotTell(Exception):
    """What a check needs cannot be measured of this code; the message says why."""


class NoOutputs(ValueError):
    """Nothing that the code gave can be its outputs, or its loss."""


def load_file(folder: Path, arguments: list[str], file: str) -> ModuleType:
    """The file as a module: named on the command line, beside the script, or where it was."""
    places = [Path(arguments[0])] if arguments else [folder / Path(file).name, Path(file)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        print(f"no file {places[-1]}; give its path on the command line")
        sys.exit(2)
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def load_member(arguments: list[str], file: str, name: str) -> ModuleType:
    """A file of a package as a module, by its dotted name: as given, or where it was."""
    path = Path(arguments[0] if arguments else file).resolve()
    if not path.is_file():
        print(f"no file {path}; give its path on the command line")
        sys.exit(2)
    above = name.count(".") + (path.stem == "__init__")
    sys.path.insert(0, str(path.parents[above]))
    return load_module(name)


def load_module(name: str) -> ModuleType:
    """A module that Python finds by its name."""
    module = importlib.import_module(name)
    torch.manual_seed(0)
    return module


def fill_settings(settings: object, **values: Any) -> object:
    """An object of settings, some of them changed."""
    for name, value in values.items():
        setattr(settings, name, value)
    return settings


def prepare(code: nn.Module, dtype: torch.dtype) -> nn.Module:
    """In evaluation mode, and with no weight at 0: a closed gate would hide what is behind it."""
    code.eval().to(torch.float64)  # rounded once, at the end: weights do not depend on the dtype
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in code.parameters():
            fixed = not one.requires_grad  # such as a table of sines
            if not fixed and one.is_floating_point() and one.numel():
                noise = torch.randn(one.shape, generator=generator, dtype=torch.float64)
                size = float(one.std()) if one.numel() > 1 else 0.0
                fan = one.shape[-1] if one.dim() > 1 else 16
                one.add_(noise.to(one), alpha=0.2 * size if size > 1e-4 else 0.5 / fan**0.5)
    return code.to(dtype)


def sample(shape: tuple[int, ...], tokens: int | None, seed: int, dtype: torch.dtype) -> Tensor:
    """Inputs of a seed: tokens [b, t] below a number, or vectors of this shape."""
    generator = torch.Generator().manual_seed(seed)
    if tokens is not None:
        return torch.randint(tokens, shape[:2], generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def call_on(device: str, code: Callable[..., Any], *inputs: Any, **more: Any) -> object:
    """Call code with its tensors on a device; with none named they stay where they are."""
    if not device:
        return code(*inputs, **more)

    def move(one: object) -> object:
        return one.to(device) if isinstance(one, Tensor) else one

    return code(*map(move, inputs), **{name: move(one) for name, one in more.items()})


def tensor_in(found: Any) -> Tensor:
    """The outputs, of a tensor, a tuple or something with logits; brought to the CPU."""
    named = [getattr(found, name, None) for name in ("logits", "last_hidden_state")]
    values = found.values() if isinstance(found, dict) else found
    members = values if isinstance(found, dict | list | tuple) else ()
    for value in (found, *named, *members):
        if isinstance(value, Tensor):
            return value.cpu()
    raise NoOutputs(f"the code gave {type(found).__name__}, not a tensor or a tuple of them")


def scalar_in(found: object) -> Tensor:
    """The loss among what a model gave."""
    named = found.get("loss") if isinstance(found, dict) else getattr(found, "loss", None)
    values = [named] if named is not None else found if isinstance(found, tuple) else [found]
    for value in values:
        if isinstance(value, Tensor) and value.numel() == 1:
            return value
    raise NoOutputs("the code was given labels and gave no loss; return one: (logits, loss)")


def movement(one: Tensor, other: Tensor) -> Tensor:
    """By row and position [b, t]: the largest change; infinite where only one is a number."""
    sizes = zip(one.shape, other.shape, strict=False)
    if one.dim() != other.dim() or any(a != b and 1 not in (a, b) for a, b in sizes):
        shapes = f"{list(one.shape)} and {list(other.shape)}"
        raise CannotTell(f"the code gave outputs of unlike shapes, {shapes}")
    same = (one == other) | (one.isnan() & other.isnan())
    change = (one.double() - other.double()).abs().masked_fill(same, 0).flatten(2).amax(-1)
    return torch.nan_to_num(change, nan=float("inf"))


def amount(size: float) -> str:
    """Of a movement, in a sentence."""
    return "NaN or infinity" if size == float("inf") else f"{size:.2g}"


def replace_inputs(x: Tensor, other: Tensor, first: int, last: int) -> Tensor:
    """x with other inputs from first to last."""
    changed, at = x.clone(), slice(first, last + 1)
    if x.is_floating_point():
        changed[:, at] = other[:, at]
    else:  # another token, also where both are the same
        count = int(torch.maximum(x.max(), other.max())) + 1
        same = other[:, at] == x[:, at]
        changed[:, at] = torch.where(same, (x[:, at] + 1) % count, other[:, at])
    return changed


def run_nudged(run: Tool, x: Tensor, model: nn.Module | None, part: float, seed: int) -> Tensor:
    """Outputs when every input (of tokens: every weight) is larger or smaller by this part."""
    generator = torch.Generator().manual_seed(seed)

    def near(one: Tensor) -> Tensor:
        noise = torch.randn(one.shape, generator=generator, dtype=torch.float64)
        return one * (1 + part * noise.sign().to(one))

    if x.is_floating_point():
        return run(near(x))
    if model is None:
        why = "weights are changed in their last bits to see what rounding does"
        raise CannotTell(f"a Subject of tokens needs its `module`: {why}")
    weights = [one for one in model.parameters() if one.is_floating_point()]
    kept = [one.detach().clone() for one in weights]
    with torch.no_grad():
        try:
            for one in weights:
                one.copy_(near(one))
            return run(x)
        finally:
            for one, before in zip(weights, kept, strict=True):
                one.copy_(before)


def roughness(run: Tool, x: Tensor, model: nn.Module | None, dtype: torch.dtype) -> float:
    """What a step inside that is done in a lower precision leaves of smoothness.

    y(x + δ) + y(x − δ) − 2y(x) falls with δ² where y is smooth: by 64 from 8δ to δ. Where
    something is rounded to a grid, it does not. The steps δ are about the grids of float16, of
    float32, and what this dtype can resolve.
    """
    before, worst = run(x), 0.0
    largest = float(before.abs().nan_to_num(posinf=0).max())

    def bend(part: float) -> float:
        up, down = (run_nudged(run, x, model, size, 0) for size in (part, -part))
        return float(movement(up + down, 2 * before).max())

    for part in (torch.finfo(dtype).eps ** 0.5, 2.0**-20, 2.0**-10):
        near, far = bend(part), bend(8 * part)
        # a token that goes to another expert, a key no longer among the top: no rounding; no grid
        # is as coarse as that (bfloat16's is 2⁻⁸)
        jumps = near > 2.0**-5 * largest
        # a kink, as of ReLU, falls by 8; a grid does not fall at all
        worst = max(worst, near if near > far / 4 and not jumps else 0.0)
    return worst


def influence(run: Tool, draw: Tool, length: int, seed: int, rows: int = 1) -> Tensor:
    """How far output i moves when input j is replaced, [t, t]; the most of three replacements.

    So many changed texts run in one call, of code that keeps rows apart.
    """
    x = draw(1, length, seed)
    before, matrix = run(x), torch.zeros(length, length, dtype=torch.float64)
    for number in (100, 200, 300):  # one might happen not to matter
        every = replace_inputs(x, draw(1, length, seed + number), 0, length - 1)
        for places in torch.arange(length).split(rows):
            texts = x.repeat(len(places), *[1] * (x.dim() - 1))
            texts[torch.arange(len(places)), places] = every[0, places]
            if rows == 1:
                found = run(texts)
            else:  # compared within a call: another number of rows may be summed in another order
                before, found = run(torch.cat((x, texts))).split([1, len(places)])
            matrix[:, places] = torch.maximum(matrix[:, places], movement(found, before).mT)
    return matrix


def generators() -> list[torch.Generator]:
    """That code may draw from: of the CPU, and of GPUs in use.

    `torch.manual_seed` formats a traceback for every kind of device that is not in use.
    """
    found = [torch.default_generator]
    if torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    return found


@contextmanager
def seeded(seed: int | None = None) -> Iterator[None]:
    """A call of the code draws the random numbers of a seed: of the one that was set last, as every
    call, if none is given.

    Those of Python and numpy too. The generators are left as they were: whoever audits draws on as
    if nothing had happened.
    """
    numpy, plain = sys.modules.get("numpy"), random.getstate()  # first: type checkers draw, too
    theirs, every = numpy and numpy.random.get_state(), generators()
    kept = [one.get_state() for one in every]
    try:
        for one in every:
            one.manual_seed(one.initial_seed() if seed is None else seed)
        first = torch.initial_seed() % 2**32
        random.seed(first)
        if numpy:
            numpy.random.seed(first)
        yield
    finally:
        random.setstate(plain)
        if numpy:
            numpy.random.set_state(theirs)
        for one, state in zip(every, kept, strict=True):
            one.set_state(state)


def run_seeded(run: Tool, x: Tensor, seed: int) -> Tensor:
    """Outputs with the random numbers of another seed."""
    with seeded(seed):
        return run(x)


def uncompiled() -> AbstractContextManager[Any]:
    """What is compiled runs as it was written, so that it can be watched: flex_attention too."""
    if "torch._dynamo" not in sys.modules:  # nothing is; it takes seconds to import
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


@contextmanager
def in_precision(model: nn.Module | None, dtype: torch.dtype) -> Iterator[None]:
    """A module in another precision for a while; afterwards everything in it is as it was."""
    modules = [] if model is None else list(model.modules())
    kept = [(one, dict(one.__dict__), dict(one._parameters), dict(one._buffers)) for one in modules]
    try:
        for one in modules:
            for name, value in one._parameters.items():
                if value is not None and value.is_floating_point():
                    one._parameters[name] = nn.Parameter(value.to(dtype), requires_grad=False)
            for name, buffer in one._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    one._buffers[name] = buffer.to(dtype)
        yield
    finally:
        for one, attributes, parameters, buffers in kept:
            one.__dict__.clear()  # tables made meanwhile would be in that precision
            one.__dict__.update(attributes)
            one._parameters.clear()
            one._parameters.update(parameters)
            one._buffers.clear()
            one._buffers.update(buffers)


def fill_blocks(x: Tensor, block: int, value: float = 0) -> Tensor:
    """Longer by zeros up to a whole number of blocks, for code that takes no other lengths."""
    more = -x.shape[1] % block
    if not more:
        return x
    return torch.cat((x, x.new_full((len(x), more, *x.shape[2:]), value)), dim=1)


def additive_mask(padding: Tensor, x: Tensor) -> Tensor:
    """A mask to add to scores: 0, and the least number where padding is."""
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return torch.zeros(padding.shape, dtype=dtype).masked_fill(padding, torch.finfo(dtype).min)


def positions_in(padding: Tensor) -> Tensor:
    """Positions that count what is not padding, from 0 on."""
    return (~padding).cumsum(1).sub(1).clamp(min=0)


def kept_in(found: object, word: str, parts: int = 1) -> object:
    """The cache among what a call gave: by its name, or the first member that is no tensor.

    A tensor is taken only where it is alone beside the outputs: others are weights. A cache of
    several parts is all that was given beside the outputs, if it is as many.
    """
    if isinstance(found, torch.Tensor) or found is None:
        return None
    if not isinstance(found, tuple | list) or hasattr(found, "_fields"):
        holder = found if isinstance(found, dict) else getattr(found, "__dict__", {})
        if hasattr(found, "_asdict"):
            holder = found._asdict()
        names = [word, *(one for one in holder if one != word and CACHES.fullmatch(str(one)))]
        return next((holder[one] for one in names if holder.get(one) is not None), None)
    outputs = next((n for n, one in enumerate(found) if isinstance(one, torch.Tensor)), 0)
    rest = [one for n, one in enumerate(found) if n != outputs and one is not None]
    if parts > 1:
        return tuple(rest) if len(rest) == parts else None
    others = [one for one in rest if not isinstance(one, torch.Tensor)]
    if others:
        return others[0]
    return rest[0] if len(rest) == 1 else None
