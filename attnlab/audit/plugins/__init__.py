"""The audit inside other tools: pytest, and a training loop."""
