"""Promises proved the hard way: commands that try to break what the laboratory says."""
