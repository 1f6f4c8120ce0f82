"""Benchmarks: a time counts as a ratio to a peer in the same run, once the numbers are right."""
