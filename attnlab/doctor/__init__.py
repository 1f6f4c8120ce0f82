"""The doctor: are two models the same function, and if not, why; one cause, one class."""
