"""Models without memory for their weights: to count parameters and operations."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from attnlab.code.own import own_parts
from attnlab.models.model import LanguageModel, ModelSettings
from attnlab.registry import OptionWarning

T = TypeVar("T")


class MetaWarning(OptionWarning):
    """Code of a person's own that needs memory to be counted."""


def measure(settings: ModelSettings, count: Callable[[LanguageModel], T]) -> T:
    """What is counted of the model on the device "meta".

    Code of a person's own may need numbers there; then the model is made with them, and that is
    said: a large one takes its memory.
    """
    try:
        with torch.device("meta"):
            return count(settings.build())
    except Exception as error:
        codes = list(dict.fromkeys(one.option for one in own_parts(settings)))
        if not codes:
            raise
        with torch.random.fork_rng(devices=[]):
            found = count(settings.build())
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"{' and '.join(codes)} is made with its weights to be counted, since it cannot be "
            f"made without ({reason})",
            MetaWarning,
            stacklevel=2,
        )
        return found
