"""Elman, bidirectional RNN and transformer: matched by size and by time, and one that cheats."""
