"""Lengths that a module names in its settings: what to try, and no more than that."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

# names of the longest text, or of the only one, that code takes
LONGEST = (
    *("max_seq_len", "max_seq_length", "max_len", "max_length", "block_size", "n_ctx"),
    *("seq_len", "seq_length", "sequence_length", "context_length", "context_size", "ctx_len"),
    *("max_position_embeddings", "n_positions", "max_positions"),
)


def named_lengths(module: nn.Module | None) -> list[int]:
    """Numbers under such a name, of the module, of those inside it and of their settings."""
    found: set[int] = set()
    for holder in _holders(module):
        values = (holder.get(name) for name in LONGEST)
        found |= {value for value in values if type(value) is int and value > 0}
    return sorted(found)


def _holders(module: nn.Module | None) -> Iterator[dict[str, Any]]:
    for one in [] if module is None else module.modules():
        yield vars(one)
        for inner in vars(one).values():
            if isinstance(inner, dict):
                yield inner
            elif hasattr(inner, "__dict__") and not isinstance(inner, nn.Module | Tensor | type):
                yield vars(inner)
