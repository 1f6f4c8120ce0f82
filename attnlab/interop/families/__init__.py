"""Architectures of `transformers` that our settings can express, one row each."""
