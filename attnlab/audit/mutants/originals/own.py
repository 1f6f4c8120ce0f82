"""Our own transformer, with caches of the classes that this file imports."""

from attnlab import registry as registry
from attnlab.attention.cache import Cache, FullCache, RingCache
from attnlab.models.transformer import Transformer
from attnlab.models.transformer import TransformerSettings as TransformerSettings


class OwnTransformer(Transformer):
    def new_cache(self, kind: str = "auto") -> Cache:
        """As ours, whose caches are looked up by name only when they are made."""
        windows = [self.settings.window_of(layer) for layer in range(self.settings.depth)]
        return Cache([FullCache() if one is None else RingCache(one) for one in windows])
