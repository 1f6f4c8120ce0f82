"""Whole experiments: one command each, from the text to a report."""
