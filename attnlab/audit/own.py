"""Our own attentions and models, to be audited: with the same weights every time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from attnlab import config, registry
from attnlab.attention.heads import HeadedAttention, Layer, LayerSettings
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject
from attnlab.models.transformer import TransformerSettings

WIDTH, CONTEXT = 32, 1024


@contextmanager
def seed_rng() -> Iterator[None]:
    """The same random numbers every time; afterwards the generator goes on as if unused."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def own_attention(heads: str, score: str, window: int | None = None) -> Subject:
    """One attention module, by the names of its options."""
    with seed_rng():
        settings = registry.load("attention", heads)()
        built = registry.load("score", score)().build(settings.heads, WIDTH // settings.heads)
        layer = Layer(width=WIDTH, context=CONTEXT, window=window)
        module = (
            settings.build(layer)
            if isinstance(settings, LayerSettings)
            else HeadedAttention(settings, built, layer)
        )
    return subject_for(module, {}, f"{heads}, {score}")


def own_model(
    positions: str,
    window: tuple[int | None, ...],
    *,
    vocabulary: int = 61,
    width: int = WIDTH,
    context: int = CONTEXT,
    words: Sequence[str] = (),
) -> Subject:
    """A transformer of two layers with a KV cache, by the name of its positions.

    `words` set what else it has, as on the command line."""
    with seed_rng():
        settings = TransformerSettings(
            vocabulary=vocabulary,
            context=context,
            width=width,
            depth=2,
            positions=registry.load("positions", positions)(),
            window=window,
        )
        module = config.override(settings, words).build()
    return subject_for(module, {}, f"transformer, {positions}")
