"""Data: text to tokens to batches, every batch a pure function of (seed, step)."""
