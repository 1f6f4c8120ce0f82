"""Where the tokens of a call stand: counted on from the cache, within documents, or as given.

Axes: b batch (1 when all rows share their positions), t time, a axes of a position.

A token has one position; for rotations by sections (M-RoPE) it can be given one on each axis, such
as frame, row and column of a picture. Text after that goes on behind the largest of them, the same
on every axis.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.attention.cache import Cache
from attnlab.attention.positions import Positions
from attnlab.kernels import Rotation, Segments
from attnlab.kernels.request import check_segments


@dataclass(frozen=True, kw_only=True)
class TokenPositions:
    positions: Int[Tensor, "#b t"]
    start: int  # tokens that the cache has read
    stop: int
    documents: Segments | None = None
    axes: Int[Tensor, "#b a t"] | None = None
    counted: bool = False  # positions are start … stop - 1 in every row

    def refuse_past(self, longest: int | None) -> None:
        """For positions that nobody gave: in documents each is counted from its first token."""
        if longest is None:
            return
        count = self.stop
        if self.documents is not None:
            count = int(self.positions.max()) + 1 if self.positions.numel() else 0
        if count > longest:
            raise ValueError(
                f"{count} tokens are more than the {longest} learned positions; give fewer tokens, "
                "raise context, or use positions that are not learned"
            )

    def rotation(self, scheme: Positions, dtype: torch.dtype) -> Rotation | None:
        if self.axes is not None:
            return scheme.rotation_by_axes(self.axes, dtype)
        if self.counted:
            return scheme.rotation_of_span(self.start, self.stop, self.positions.device, dtype)
        return scheme.rotation(self.positions, dtype)

    def next(
        self, key_padding: Bool[Tensor, "b t"] | None, before: Int[Tensor, " #b"] | None
    ) -> Int[Tensor, " #b"] | None:
        """Where text goes on after this; None: at the number of tokens, which all were so far."""
        if before is None and self.axes is None and self.counted:
            return None
        given = self.positions[:, None] if self.axes is None else self.axes
        if key_padding is not None:
            given = given.masked_fill(key_padding[:, None], -1)
        if given.shape[2]:
            after = given.amax((1, 2)) + 1
            return after.clamp(min=self.start) if before is None else torch.maximum(after, before)
        return before


def find_positions(
    tokens: Int[Tensor, "b t"],
    *,
    positions: Int[Tensor, "#b t"] | None,
    axes: Int[Tensor, "#b a t"] | None,
    segments: Int[Tensor, "#b t"] | None,
    cache: Cache | None,
) -> TokenPositions:
    start = 0 if cache is None else cache.length
    stop = start + tokens.shape[1]
    documents = _documents(segments, tokens, cache)
    counted = positions is None and documents is None
    if documents is not None and positions is None:
        positions = documents.positions()
    if positions is None:
        positions = torch.arange(start, stop, device=tokens.device)[None]
        if axes is None and cache is not None and cache.next is not None:
            axes = (cache.next[:, None] + positions - start)[:, None]
    return TokenPositions(
        positions=positions,
        start=start,
        stop=stop,
        documents=documents,
        axes=axes,
        counted=counted,
    )


def check_axes(
    axes: Int[Tensor, "#b a t"], tokens: Int[Tensor, "b t"], schemes: Iterable[Positions]
) -> None:
    """A ValueError for what a caller gave."""
    count = max(scheme.axes for scheme in schemes)
    batch, time = tokens.shape
    if not count:
        raise ValueError(
            "axes turn the sections of rotary positions, and this model has none; set "
            "model.positions=rotary and model.positions.sections, such as 16,24,24 of 64 pairs"
        )
    if axes.dim() != 3 or axes.shape[0] not in (1, batch) or axes.shape[1:] != (count, time):
        raise ValueError(
            f"axes have shape {list(axes.shape)}; for these tokens and model.positions.sections "
            f"it is [1 or {batch}, {count} axes, {time} tokens]"
        )
    if axes.dtype not in (torch.int32, torch.int64) or axes.device != tokens.device:
        raise ValueError(
            f"axes are {axes.dtype} on {axes.device}; they are whole numbers beside the tokens on "
            f"{tokens.device}: torch.long"
        )


def _documents(segments: Tensor | None, tokens: Tensor, cache: Cache | None) -> Segments | None:
    if segments is None:
        return None
    if cache is not None:
        raise ValueError("segments and cache exclude each other; decode documents as rows")
    check_segments("tokens", segments, tokens.shape[0], tokens.shape[1], tokens.device)
    segments = segments.expand(tokens.shape[0], -1).contiguous()
    return Segments(segments, segments)
