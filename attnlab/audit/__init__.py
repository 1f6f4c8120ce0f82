"""The audit: finds out by experiment what somebody's attention code does.

    from attnlab.audit import audit, assert_contract

Names are loaded when they are used: a plugin of pytest must not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.audit.contract import Certificate, Contract, Finding
    from attnlab.audit.examine import assert_contract, audit
    from attnlab.audit.subject.base import Subject

__all__ = ["Certificate", "Contract", "Finding", "Subject", "assert_contract", "audit"]
_HOMES = {
    "Certificate": "contract",
    "Contract": "contract",
    "Finding": "contract",
    "Subject": "subject.base",
    "assert_contract": "examine",
    "audit": "examine",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
