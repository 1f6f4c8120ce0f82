"""Text prepared ahead: `attnlab prepare` makes token shards of it, training reads them in place."""
