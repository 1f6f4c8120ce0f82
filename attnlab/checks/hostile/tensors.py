"""Files of tensors whose header lies: about lengths, offsets, shapes, types and names."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.checks.hostile.forge import content_of, edited, tensors
from attnlab.checks.hostile.trial import EITHER, GENERATE, RESUME, Act, Family, Place, Plant, Trial

Edit = Callable[[dict[str, Any], bytes], dict[str, Any] | bytes]  # of a header and what follows it
MODEL = "checkpoint/model.safetensors"


def entry(begin: int, end: int, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def changed(edit: Edit) -> Plant:
    """The good file, with another header."""

    def plant(place: Place) -> None:
        content = (place.checkpoint / "model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
        made = edit(header, data)
        content_of(MODEL, made if isinstance(made, bytes) else tensors(made, data))(place)

    return plant


def first(header: dict[str, Any]) -> str:
    return next(name for name in header if name != "__metadata__")


def with_first(**fields: Any) -> Edit:
    def edit(header: dict[str, Any], data: bytes) -> dict[str, Any]:
        name = first(header)
        return {**header, name: {**header[name], **fields}}

    return edit


def with_not_a_number(header: dict[str, Any], data: bytes) -> bytes:
    return tensors(header, struct.pack("<f", float("nan")) + data[4:])


def twice(header: dict[str, Any], data: bytes) -> bytes:
    name = first(header)
    text = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    return tensors(text.encode(), data)


EIGHT = b"\0" * 8
HEADERS: dict[str, tuple[bytes, Act]] = {
    "a header of 2^63 bytes": (tensors({}, length=2**63), GENERATE),
    "a header of 2^64 - 1 bytes": (tensors({}, length=2**64 - 1), RESUME),
    "a header longer than the file": (tensors({}, length=1000), GENERATE),
    "a header of 99 MB that is not there": (tensors({}, length=99_000_000), GENERATE),
    "no header": (tensors(b""), GENERATE),
    "seven bytes": (b"\0" * 7, GENERATE),
    "an empty file": (b"", RESUME),
    "a header that is not JSON": (tensors(b"{" * 40), GENERATE),
    "a header nested 100,000 deep": (tensors(b'{"a":' * 100_000), GENERATE),
    "a header that is a list": (tensors([1, 2]), GENERATE),
    "a negative offset": (tensors({"w": entry(-8, 0)}, EIGHT), GENERATE),
    "an offset beyond the end": (tensors({"w": entry(0, 1 << 40)}, EIGHT), GENERATE),
    "an offset of 2^63": (tensors({"w": entry(2**63, 2**63 + 8)}, EIGHT), GENERATE),
    "an end before the beginning": (tensors({"w": entry(8, 0)}, EIGHT), GENERATE),
    "tensors that overlap": (tensors({"v": entry(0, 8), "w": entry(4, 12)}, EIGHT * 2), GENERATE),
    "a gap between tensors": (tensors({"v": entry(0, 8), "w": entry(16, 24)}, EIGHT * 3), GENERATE),
    "a shape of 2^62 by 2^62": (tensors({"w": entry(0, 8, (2**62, 2**62))}, EIGHT), GENERATE),
    "a shape of 10^9 with 8 bytes": (tensors({"w": entry(0, 8, (10**9,))}, EIGHT), GENERATE),
    "a negative shape": (tensors({"w": entry(0, 8, (-2,))}, EIGHT), GENERATE),
    "an unknown dtype": (tensors({"w": entry(0, 8, dtype="F999")}, EIGHT), GENERATE),
    "a dtype that is an object": (tensors({"w": entry(0, 8, dtype={"a": 1})}, EIGHT), GENERATE),
    "a hundred thousand empty tensors": (
        tensors({str(n): entry(0, 0, (0,)) for n in range(100_000)}),
        GENERATE,
    ),
}


def naive(place: Place) -> None:
    """Believes the header."""
    content = (place.checkpoint / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    for one in json.loads(content[8 : 8 + size]).values():
        np.ones(one["shape"], dtype=np.float32)


FAMILY = Family(
    name="tensors",
    about="headers of safetensors that lie",
    trials=[
        *(
            Trial(
                name=name,
                plant=content_of(MODEL, content),
                act=act,
                codes=EITHER if act is RESUME else (2,),
            )
            for name, (content, act) in HEADERS.items()
        ),
        Trial(name="a name that is there twice", plant=changed(twice), act=GENERATE, codes=EITHER),
        Trial(
            name="a tensor of another dtype", plant=changed(with_first(dtype="I32")), act=GENERATE
        ),
        Trial(
            name="a tensor of another shape",
            plant=changed(with_first(shape=[1, 1, 1])),
            act=GENERATE,
        ),
        Trial(name="weights that are NaN", plant=changed(with_not_a_number), act=GENERATE),
        Trial(
            name="a name with a path",
            plant=changed(
                lambda header, data: {
                    f"../../{name}" if name == first(header) else name: value
                    for name, value in header.items()
                }
            ),
            act=GENERATE,
        ),
        Trial(
            name="tensors of another model",
            plant=edited(
                "checkpoint/config.json", lambda it: {**it, "model": {**it["model"], "width": 16}}
            ),
            act=GENERATE,
        ),
        Trial(
            name="a reader that believes shapes",
            plant=content_of(MODEL, tensors({"w": entry(0, 8, (600_000_000,))}, EIGHT)),
            act=naive,
            caught="exhausted",
        ),
        Trial(
            name="a reader that believes the header is JSON",
            plant=content_of(MODEL, tensors(b'{"a":' * 100_000)),
            act=naive,
            caught="traceback",
        ),
    ],
)
