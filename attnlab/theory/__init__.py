"""The theory of attention as experiments: each claim is run, and its verdict computed."""
