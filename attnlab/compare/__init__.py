"""Comparisons of variants: same text, same batches, same budget, several seeds."""
