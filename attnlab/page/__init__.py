"""A page to look at the laboratory and touch it, in a browser on the same machine (extra: web)."""
