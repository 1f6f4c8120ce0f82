"""A message about a missing package names an extra that there is, and that brings the package."""

import re
import tomllib
from pathlib import Path

import pytest

from attnlab.extras import EXTRAS, missing

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_that_is_named_brings_the_package(package):
    extra = re.search(r"pip install 'attnlab\[(\w+)\]'$", missing(package, "this"))[1]
    brought = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"][extra]
    assert package in {re.match(r"[\w-]+", one)[0] for one in brought}
