"""The command line: verbs that parse, call and print. Torch is imported inside a verb only."""

from attnlab.cli import (  # noqa: F401  (each adds its verbs to the app)
    audit,
    comparing,
    doctor,
    experiments,
    interop,
    listing,
    models,
    page,
    prepare,
    theory,
    tour,
    trust,
)
from attnlab.cli.app import app, main

__all__ = ["app", "main"]
