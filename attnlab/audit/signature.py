"""What a function takes, also where its annotations cannot be evaluated.

From Python 3.14 on annotations are evaluated when somebody asks for them. One that names what is
imported for type checkers only would raise NameError here; the names of parameters are enough.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def signature(code: Callable[..., Any]) -> inspect.Signature:
    """As `inspect.signature`; an annotation that cannot be evaluated is a forward reference."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(code, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(code)


def annotation_of(parameter: inspect.Parameter, module: ModuleType | None) -> object:
    """What a parameter says it takes, in its module; None where that is no Python that runs."""
    said = parameter.annotation
    if not isinstance(said, str):
        return said
    try:
        return eval(said, dict(vars(module)) if module else {})
    except Exception:  # an annotation may be anything
        return None
