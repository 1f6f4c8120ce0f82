"""Causal language models of `transformers`: built tiny, run, and swept."""
