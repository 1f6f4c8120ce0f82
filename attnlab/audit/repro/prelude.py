"""What scripts bring along: code is loaded and prepared, inputs are drawn, outputs compared.

It is printed into scripts as it stands, so it knows torch and nothing of this package.

Axes: b batch, t time.
"""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch

# what code calls the cache that it takes, or gives back
CACHES = re.compile(r"(\w+_)?(past|caches?|kv|presents?)(_\w+)?|states?|mems|inference_params")


def loaded(folder: Path, words: list[str], file: str) -> Any:
    """The file as a module: named on the command line, beside the script, or where it was."""
    places = [Path(words[0])] if words else [folder / Path(file).name, Path(file)]
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


def prepared(code: Any, dtype: torch.dtype) -> Any:
    """In evaluation mode, and with no weight at 0: a closed gate would hide what is behind it."""
    code.eval().to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in code.parameters():
            fixed = not one.requires_grad  # such as a table of sines
            if not fixed and one.is_floating_point() and one.numel():
                noise = torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)
                size = float(one.std()) if one.numel() > 1 else 0.0
                fan = one.shape[-1] if one.dim() > 1 else 16
                one.add_(noise, alpha=0.2 * size if size > 1e-4 else 0.5 / fan**0.5)
    return code


def drawn(shape: tuple[int, ...], tokens: int | None, seed: int, dtype: torch.dtype) -> Any:
    """Inputs of a seed: tokens, or vectors."""
    generator = torch.Generator().manual_seed(seed)
    if tokens is not None:
        return torch.randint(tokens, shape[:2], generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def tensor_in(found: Any) -> Any:
    """The outputs, of a tensor, a tuple or something with logits."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(found, name, None), torch.Tensor):
            return getattr(found, name)
    if isinstance(found, torch.Tensor):
        return found
    values = list(found.values() if isinstance(found, dict) else found)
    return next(value for value in values if isinstance(value, torch.Tensor))


def moved(one: Any, other: Any) -> Any:
    """By row and position [b, t]: the largest change; infinite where there is no number."""
    same = (one == other) | (one.isnan() & other.isnan())
    change = (one.double() - other.double()).abs().masked_fill(same, 0).flatten(2).amax(-1)
    return torch.nan_to_num(change, nan=float("inf"))


def replaced(x: Any, other: Any, first: int, last: int) -> Any:
    """x with other inputs from first to last."""
    changed, at = x.clone(), slice(first, last + 1)
    if x.is_floating_point():
        changed[:, at] = other[:, at]
    else:  # another token, also where both are the same
        count = int(torch.maximum(x.max(), other.max())) + 1
        same = other[:, at] == x[:, at]
        changed[:, at] = torch.where(same, (x[:, at] + 1) % count, other[:, at])
    return changed


def filled(x: Any, block: int, value: float = 0) -> Any:
    """Longer by zeros up to a whole number of blocks, for code that takes no other lengths."""
    more = -x.shape[1] % block
    if not more:
        return x
    return torch.cat((x, x.new_full((len(x), more, *x.shape[2:]), value)), dim=1)


def added(padding: Any, x: Any) -> Any:
    """To be added to scores: 0, and the least number where padding is."""
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return torch.zeros(padding.shape, dtype=dtype).masked_fill(padding, torch.finfo(dtype).min)


def kept_in(found: Any, word: str) -> Any:
    """The cache among what a call gave: by its name, or the first member that is no tensor.

    A tensor is taken only where it is alone beside the outputs: others are weights.
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
    others = [one for one in rest if not isinstance(one, torch.Tensor)]
    if others:
        return others[0]
    return rest[0] if len(rest) == 1 else None
