"""Triton's interpreter (3.6), mended where it is in the way of a test."""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def mend():
    """NumPy 2.4 makes no numbers of arrays with one element, which bounds of loops are.

    Products: the interpreter takes bfloat16 for whole numbers, and NumPy's a b and (bᵀ aᵀ)ᵀ differ
    by ten roundings, where a chip adds up in one order; here they are exact before being rounded.
    """
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = _product


def _product(builder, a, b, sums, precision, imprecise):
    exact = np.matmul(_wide(a), _wide(b)) + sums.data
    return interpreter.TensorHandle(exact.astype(sums.data.dtype), sums.dtype.scalar)


def _wide(handle):
    data = handle.data
    if handle.dtype.scalar == tl.bfloat16:  # kept as the upper half of a float32
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float64)
