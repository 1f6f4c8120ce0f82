"""Tensors as a safetensors file that is never whole in memory: its header, and the tensors' bytes.

The bytes are those that `safetensors.torch.save` gives. That makes a second copy of all tensors;
here a checkpoint takes no more memory than the model has.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ALIGNED = 8  # bytes
# in the order in which the library writes them, tensors of one dtype by name
NAMES = {
    "int64": "I64",
    "float64": "F64",
    "float32": "F32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class TensorFile:
    """`heed` is called before each tensor: it may raise, where writing is to end."""

    def __init__(
        self, tensors: Mapping[str, "Tensor"], heed: Callable[[], None] = lambda: None
    ) -> None:
        self._heed = heed
        order = list(NAMES)
        for name, tensor in tensors.items():
            if _dtype(tensor) not in NAMES:
                raise ValueError(
                    f"{name!r} has dtype {_dtype(tensor)}, which a checkpoint cannot hold; use "
                    + ", ".join(NAMES)
                )
        names = sorted(tensors, key=lambda name: (order.index(_dtype(tensors[name])), name))
        self._tensors = [tensors[name] for name in names]
        header, start = {}, 0
        for name, tensor in zip(names, self._tensors, strict=True):
            stop = start + tensor.numel() * tensor.element_size()
            header[name] = {
                "dtype": NAMES[_dtype(tensor)],
                "shape": list(tensor.shape),
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % ALIGNED)
        self._head, self._size = len(text).to_bytes(8, "little") + text, start

    def __len__(self) -> int:
        return len(self._head) + self._size

    def __iter__(self) -> Iterator[memoryview]:
        """The bytes of the file, a piece at a time."""
        import torch

        yield memoryview(self._head)
        for tensor in self._tensors:
            self._heed()
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data

    def sha256(self) -> str:
        found = hashlib.sha256()
        for piece in self:
            found.update(piece)
        return found.hexdigest()


def _dtype(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")
