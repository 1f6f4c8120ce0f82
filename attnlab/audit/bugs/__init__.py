"""The development set: known bugs in attention code re-made small, each beside its correct twin.

from attnlab.audit.bugs.cases import cases
"""
