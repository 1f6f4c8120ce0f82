"""Payloads that try to make attnlab execute, overwrite, delete, leak, hang or use up something."""
