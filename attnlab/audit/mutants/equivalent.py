"""Mutants that are no bugs, each looked at by hand: why it is as right as its original.

(original, line before, line after) → reason. A mutant that the audit does not find counts as missed
unless it is here; one that is here and that the audit fails counts as a false alarm.
"""

EQUIVALENT: dict[tuple[str, str, str], str] = {}
