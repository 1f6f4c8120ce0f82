"""Sliding windows against full attention: what they cost, and where they lose."""
