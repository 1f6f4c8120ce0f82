"""Causes for which two models differ: each is one small class and one row of the registry."""
