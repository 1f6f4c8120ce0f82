"""The command line: verbs that parse, call and print. Torch is imported inside a verb only."""

from attnlab.cli import audit, comparing, experiments, listing, models, page, theory, tour, trust  # noqa: F401  (each adds its verbs to the app)
from attnlab.cli.app import app, main

__all__ = ["app", "main"]
