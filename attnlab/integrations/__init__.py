"""Our attention inside other libraries."""
