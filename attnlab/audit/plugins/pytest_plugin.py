"""The audit in pytest: a test for each property of code and one for the verdict, and a fixture.

    pytest --attnlab-audit "model.py:Attention width=32" --attnlab-declare causal=true

    def test_attention_keeps_its_contract(attnlab_audit):
        attnlab_audit(Attention(32), causal=True)

Every run of pytest loads this module, so it imports nothing that takes long: the code is audited
in a process of its own (`audit/sandbox.py`), once, when its first test runs.
"""

import shlex
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnlab.audit.contract import Certificate
    from attnlab.audit.sandbox import Answer


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnlab", "audit of attention code")
    group.addoption(
        "--attnlab-audit",
        action="append",
        default=[],
        metavar="'FILE.PY:NAME [KEY=VALUE …]'",
        help="audit this code, with options of its constructor; may be given again",
    )
    group.addoption(
        "--attnlab-declare",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what the audited code must do, such as causal=true; may be given again",
    )
    group.addoption(
        "--attnlab-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="that an audit may take",
    )


@pytest.hookimpl(tryfirst=True)  # so that -k and -m choose among these too
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    for text in config.getoption("--attnlab-audit"):
        target, *options = shlex.split(text) or [""]
        audited = AuditCollector.from_parent(session, name=target, options=tuple(options))
        items.extend(audited.collect())


@pytest.fixture
def attnlab_audit() -> Callable[..., Any]:
    """`assert_contract`: audits a module or a function, and fails the test that breaks its word."""
    from attnlab.audit import assert_contract

    return assert_contract


class AuditCollector(pytest.Collector):
    """Code on the command line."""

    def __init__(self, *, options: tuple[str, ...], **given: Any) -> None:
        super().__init__(**given)
        self._options = options

    def collect(self) -> Iterator[pytest.Item]:
        from attnlab import registry

        for option in registry.options("property"):
            yield PropertyTest.from_parent(self, name=option.name)
        yield VerdictTest.from_parent(self, name="verdict")

    @cached_property
    def answer(self) -> "Answer":
        from attnlab.audit import sandbox
        from attnlab.audit.declaration import read_contract

        contract = read_contract(None, self.config.getoption("--attnlab-declare"))
        limits = sandbox.Limits(seconds=self.config.getoption("--attnlab-timeout"))
        request = sandbox.Request(target=self.name, options=self._options, contract=contract)
        return sandbox.audit_in_child(request, limits)


class Broken(Exception):
    """A test of the audit that fails, in one message."""


class AuditTest(pytest.Item):
    """A test about the certificate of its parent."""

    parent: AuditCollector

    def certificate(self) -> "Certificate":
        answer = self.parent.answer
        if answer.certificate is None:
            reason = "\n".join(filter(None, (answer.detail, answer.traceback)))
            raise Broken(f"{self.parent.name} was not audited: {reason}")
        return answer.certificate

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any) -> Any:
        """What was found; where in here it was raised helps nobody."""
        from attnlab.audit.errors import InputError
        from attnlab.config import ConfigError

        if isinstance(excinfo.value, Broken | InputError | ConfigError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return Path(self.parent.name.rpartition(":")[0]), None, f"{self.parent.name}::{self.name}"


class PropertyTest(AuditTest):
    """One property: fails if the code lacks it, or if a declared field hangs on it in vain."""

    def runtest(self) -> None:
        from attnlab.audit.contract import ESTABLISHED_BY

        certificate = self.certificate()
        found = next((one for one in certificate.findings if one.name == self.name), None)
        if found is None:
            pytest.skip("not examined")
        if found.verdict == "pass":
            return
        if found.verdict == "fail":
            raise Broken("\n".join(self._failures(certificate)))
        declared = [
            certificate.written(field)
            for field in certificate.unestablished
            if self.name in ESTABLISHED_BY[field]
        ]
        if declared:
            fields = ", ".join(declared)
            raise Broken(f"{self.parent.name}: {fields} was not established: {found.detail}")
        pytest.skip(f"{found.verdict}: {found.detail}")

    def _failures(self, certificate: "Certificate") -> Iterator[str]:
        """Each with its smallest example."""
        examples = {(one["name"], one["aspect"]): one for one in self.parent.answer.examples}
        for one in certificate.failed:
            if one.name == self.name:
                yield f"{self.parent.name}, {one.title}: {one.detail}"
                example = examples.get((one.name, one.aspect), {})
                if example.get("sentence"):
                    yield f"smallest: {example['sentence']}"


class VerdictTest(AuditTest):
    """The certificate as a whole, with what has no test of its own."""

    def runtest(self) -> None:
        certificate, answer = self.certificate(), self.parent.answer
        if answer.traceback:  # of an example: the certificate is as it should be
            raise Broken(f"{self.parent.name}: {answer.detail}\n{answer.traceback}")
        if certificate.verdict != "pass":
            raise Broken(f"{self.parent.name}: {certificate.verdict}; {certificate.reason}")
