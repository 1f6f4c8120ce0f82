"""attnlab: a laboratory for attention in language models."""

__version__ = "0.1.0"
