"""Bugs made by program: operators that rewrite one place of correct attention code."""
