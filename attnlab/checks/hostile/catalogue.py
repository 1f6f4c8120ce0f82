"""All families of payloads, each in a file of its own."""

import importlib

from attnlab.checks.hostile.trial import Family

NAMES = (
    "pickles",
    "tensors",
    "archives",
    "numbers",
    "links",
    "special",
    "paths",
    "escapes",
    "markup",
    "folders",
    "code",
    "caches",
)


def family(name: str) -> Family:
    """Imported now: a family needs torch and much else."""
    found: Family = importlib.import_module(f"attnlab.checks.hostile.{name}").FAMILY
    assert found.name == name
    return found
