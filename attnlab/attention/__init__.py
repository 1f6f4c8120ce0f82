"""Attention as modules with parameters: scores, heads, positions and caches."""
