"""Attention as functions on tensors: one definition, several paths that equal it.

Axes: b batch, h query heads, g key/value heads, t time, d head width.
"""

from attnlab.kernels.dispatch import Choice, attention, choose
from attnlab.kernels.mask import Reach, Segments, segments_of_lengths
from attnlab.kernels.request import Bias, DistanceBias, LinearBias, Request
from attnlab.kernels.rotary import Rotation, rotate, rotation

__all__ = [
    "Bias",
    "Choice",
    "DistanceBias",
    "LinearBias",
    "Reach",
    "Request",
    "Rotation",
    "Segments",
    "attention",
    "choose",
    "rotate",
    "rotation",
    "segments_of_lengths",
]
