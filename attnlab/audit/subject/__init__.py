"""Strangers' code as a subject: loaded, and called by the signature it has."""
