"""Correct attention code as people write it by hand, one kind a file: bugs are made in it."""
