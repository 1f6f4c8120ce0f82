"""The audit: finds out by experiment what somebody's attention code does.

from attnlab.audit import audit, assert_contract
"""

from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.examine import assert_contract, audit
from attnlab.audit.subject import Subject

__all__ = ["Certificate", "Contract", "Finding", "Subject", "assert_contract", "audit"]
