"""A person's own code: where it is, what it depends on, and what it is made with."""
