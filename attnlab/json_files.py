"""JSON in files: written for people, read with distrust, and sealed with a hash.

A number is finite and nesting is shallow in all that is read; `in_shape` refuses a value that is
not of the kind that was written. What cannot be checked by its shape is written with its own hash.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

from attnlab import files

LARGEST = 1e18  # no count, loss or time of ours is larger
DEEPEST = 60  # of objects within objects
ODD = files.ODD
SEAL = "sha256"  # the key of the hash

Json = dict[str, Any] | list[Any] | str | int | float | bool | None  # as Python reads it


def as_json(value: object, indent: int | None = 2) -> bytes:
    """JSON for people: keys in the order given, a newline at the end; without indent, one line."""
    return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()


@overload
def finite(value: Mapping[Any, Any]) -> dict[str, Any]: ...
@overload
def finite(value: list[Any] | tuple[Any, ...]) -> list[Any]: ...
@overload
def finite(value: object) -> Json: ...
def finite(value: object) -> Json:
    """What JSON can hold: None where a number is infinite or none at all."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


def read_json(path: Path, shape: Any = None) -> Any:
    """What a JSON file of ours holds; a ValueError that names it when it holds something else."""
    value = parse_json(files.read(path, files.NAMED), path)
    return value if shape is None else in_shape(value, shape, path)


def parse_json(content: bytes, path: Path) -> Json:
    """JSON whose numbers are finite and whose nesting is that of people."""
    try:
        value: Json = json.loads(content, parse_float=_read_number, parse_constant=_read_number)
        _refuse_deep(value)
    except ValueError as error:  # also a number of more digits than Python will read
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not JSON of ours: it is nested too deeply") from None
    return value


def _read_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _refuse_deep(value: Json) -> None:
    """What can be read may still be too deep to be printed in a message."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise RecursionError


def in_shape(value: Any, shape: Any, path: Path, key: str = "") -> Any:
    """The value if it has this shape, else a ValueError that names file, key and value.

    A shape is a type: `object` for anything, `float` for any finite number and `int` for a count,
    neither below zero; {"key": shape} for an object with these keys, among others, where "key?" may
    be missing; [shape] for a list; and (shape, …) for one of several, None among them.
    """
    if isinstance(shape, tuple):
        for one in shape:
            with suppress(ValueError):
                return in_shape(value, one, path, key)
    elif isinstance(shape, dict) and isinstance(value, dict):
        for name, inner in shape.items():
            plain = name.removesuffix("?")
            if plain in value:
                in_shape(value[plain], inner, path, _dotted(key, plain))
            elif name == plain:
                raise ValueError(f"{path} has no {_dotted(key, name)}; {ODD}")
        return value
    elif isinstance(shape, list) and isinstance(value, list):
        for number, one in enumerate(value):
            in_shape(one, shape[0], path, _dotted(key, str(number)))
        return value
    elif shape in (int, float):
        if type(value) in (int, shape) and 0 <= value <= LARGEST:
            return value
    elif (shape is None and value is None) or shape in (object, type(value)):
        return value
    found = repr(value)
    found = found if len(found) <= 60 else f"{found[:60]}…"
    raise ValueError(f"{path}: {key} is {found}; {ODD}" if key else f"{path} is {found}; {ODD}")


def _dotted(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def sealed_json(value: dict[str, Any], indent: int | None = 2) -> bytes:
    """The only spelling of an object, with its own hash: any other byte in it is damage."""
    digest = hashlib.sha256(as_json(value, indent)).hexdigest()
    return as_json({**value, SEAL: digest}, indent)


def read_sealed(path: Path) -> dict[str, Any]:
    """What `sealed_json` wrote; a ValueError that names the file when a byte is another."""
    return unseal(files.read(path, files.NAMED), path)


def unseal(content: bytes, path: Path, indent: int | None = 2) -> dict[str, Any]:
    """The same of bytes that have been read, such as a line of a file."""
    value = parse_json(content, path)
    if isinstance(value, dict) and value.pop(SEAL, None) is not None:
        try:
            same = content == sealed_json(value, indent)
        except UnicodeEncodeError:  # half of a surrogate pair, which no file of ours holds
            same = False
        if same:
            return value
    raise ValueError(f"{path} is damaged: its hash does not match")
