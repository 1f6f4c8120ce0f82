"""A token's step through all layers of a transformer in C: step.c, in the library of native.py.

Axes: b batch, c width, g key/value heads, k keys, d head width, v vocabulary.

The structures here are those of step.c, field for field. They hold addresses: whoever fills them
in keeps the tensors. Numbers that are added up in another order than PyTorch's come out otherwise
in their last bits.
"""

import ctypes
import functools

import torch
from torch import Tensor

from attnlab.kernels import native

WORK_PER_THREAD = 1 << 18  # multiplications that are worth waking a thread for: some 20 µs

NORMS = {"none": 0, "rms": 1, "layer": 2}
ACTIVATIONS = {"gelu": 0, "gelu-tanh": 1, "squared-relu": 2, "silu": 3}


class Linear(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_long) for name in ("inputs", "outputs")),
    ]


@functools.cache
def types(dtype: torch.dtype) -> tuple[type[ctypes.Structure], ...]:
    """Of a norm, a layer and a step, for numbers of this dtype."""
    real = ctypes.c_double if dtype == torch.float64 else ctypes.c_float

    class Norm(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_void_p) for name in ("gains", "bias")),
            ("kind", ctypes.c_long),
            *((name, real) for name in ("offset", "epsilon")),
        ]

    norms = ("attention", "attended", "feedforward", "forwarded", "query", "key")
    longs = (
        *("positions", "pairs", "interleaved", "mask_row", "k_row", "k_head", "v_row", "v_head"),
        *("first", "last", "heads", "kv_heads", "head_width", "activation", "parallel"),
    )

    class Layer(ctypes.Structure):
        _fields_ = [
            *((f"{name}_norm", Norm) for name in norms),
            *((name, Linear) for name in ("project", "merge", "gate", "up", "down")),
            *(
                (name, ctypes.c_void_p)
                for name in ("cos", "sin", "sinks", "slopes", "mask", "k", "v")
            ),
            *((name, ctypes.c_long) for name in longs),
            *((name, real) for name in ("scale", "cap")),
        ]

    scratch = ("normed", "projected", "attended", "gated", "inner", "added", "scores", "turned")
    sizes = ("depth", "batch", "width", "keys", "threads", "work_per_thread")

    class Step(ctypes.Structure):
        _fields_ = [
            ("layers", ctypes.POINTER(Layer)),
            ("norm", Norm),
            ("head", Linear),
            *((name, ctypes.c_void_p) for name in ("at", "x", "logits", *scratch)),
            *((name, ctypes.c_long) for name in sizes),
            ("cap", real),
            ("region", ctypes.c_void_p),
            ("layer", ctypes.c_void_p),
            ("linear", ctypes.c_void_p * 2),
            ("from", ctypes.c_void_p),
            ("to", ctypes.c_void_p * 2),
            ("next", ctypes.c_long),
        ]

    return Norm, Layer, Step


def linear(weight: Tensor, bias: Tensor | None) -> Linear:
    return Linear(address(weight), address(bias), weight.shape[1], weight.shape[0])


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def library(dtype: torch.dtype) -> ctypes.CDLL:
    loaded = native.library(dtype)
    _, layer, step = types(dtype)
    for name, kind in (("attnlab_step_size", step), ("attnlab_layer_size", layer)):
        getattr(loaded, name).restype = ctypes.c_long
        assert getattr(loaded, name)() == ctypes.sizeof(kind), f"{name}: step.c differs from here"
    loaded.attnlab_step.argtypes = [ctypes.c_void_p]
    return loaded
