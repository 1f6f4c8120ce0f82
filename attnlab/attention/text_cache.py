"""The cache of code that keeps no keys: all that a layer was given, to be read again.

Axes: b batch, t time, c model width.
Cost: decoding a token costs a reading of the whole text.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnlab.attention.cache import LayerCache
from attnlab.attention.heads import AttentionOptions
from attnlab.kernels import Rotation


class TextCache(LayerCache):
    """All that a layer was given so far, for code that reads the whole text again."""

    keeps_keys = False

    def reset(self) -> None:
        super().reset()
        self._parts: dict[str, Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self._parts.values())

    def check(self, batch: int) -> None:
        if "x" in self._parts and self._parts["x"].shape[0] != batch:
            raise ValueError(
                f"the cache holds {self._parts['x'].shape[0]} texts, and these are tokens of "
                f"{batch}; reset the cache before other texts"
            )

    def extend(self, x: Tensor, options: AttentionOptions) -> tuple[Tensor, AttentionOptions]:
        """The texts with these tokens at their end."""
        before = self._parts["x"].shape[1] if "x" in self._parts else 0
        padding = options.key_padding
        if padding is None and "padding" in self._parts:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        if padding is not None and "padding" not in self._parts and before:
            self._parts["padding"] = padding.new_zeros(x.shape[0], before)
        x = self._add("x", x.detach(), 1)
        if padding is not None:
            padding = self._add("padding", padding, 1)
        turned = options.rotary
        if turned is not None:
            cos, sin = self._add("cos", turned.cos, 2), self._add("sin", turned.sin, 2)
            turned = Rotation(cos, sin, turned.layout)
        return x, replace(options, key_padding=padding, rotary=turned, tokens=None)

    def _add(self, name: str, new: Tensor, axis: int) -> Tensor:
        if name in self._parts:
            old = self._parts[name]
            if old.shape[0] != new.shape[0]:  # positions that all rows shared until now
                old = old.expand(new.shape[0], *old.shape[1:])
            new = torch.cat([old, new], axis)
        self._parts[name] = new
        return new
