"""What a person declares on a command line: a JSON file, and words such as causal=true."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab import config, files, json_files
from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError


def read_contract(path: Path | None, words: Sequence[str]) -> Contract:
    """The contract of a file, if there is one; words win over it, but not over each other."""
    _check_words(words)
    if path is None:
        return config.override(Contract(), words)
    try:
        declared: Any = json_files.parse_json(files.read_named(path), path)
    except OSError as error:
        what = "is no file" if not path.exists() else f"cannot be read ({error.strerror})"
        raise InputError(
            f'--contract {path} {what}; give a JSON file such as {{"causal": true}}'
        ) from None
    except ValueError as error:
        raise InputError(f'{error}; write it as {{"causal": true, "window": 8}}') from None
    try:
        contract = config.from_dict(Contract, declared)
    except config.ConfigError as error:
        raise config.ConfigError(f"{path}: {error}") from None
    return config.override(contract, words)


def _check_words(words: Sequence[str]) -> None:
    """Which of two different values is meant nobody knows; the same one twice is no matter."""
    before: dict[str, Any] = {}
    for word in words:
        for name, value in config.override(Contract(), [word]).declared().items():
            if before.setdefault(name, value) != value:
                both = f"as {_text(before[name])} and as {_text(value)}"
                raise InputError(f"{name} is declared twice, {both}; declare it once")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
