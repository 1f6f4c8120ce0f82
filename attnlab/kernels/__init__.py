"""Attention as functions on tensors: one definition, several paths that equal it.

Axes: b batch, h query heads, g key/value heads, t time, d head width.
"""

from attnlab.kernels.dispatch import Choice, attention, choose
from attnlab.kernels.request import LinearBias, Request
from attnlab.kernels.rotary import Rotation, rotate, rotation

__all__ = [
    "Choice",
    "LinearBias",
    "Request",
    "Rotation",
    "attention",
    "choose",
    "rotate",
    "rotation",
]
