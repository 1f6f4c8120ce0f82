"""A fair fight between variants: same text, same batches, same budget, several seeds."""
