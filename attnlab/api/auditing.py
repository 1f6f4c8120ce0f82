"""`attnlab.audit`: a certificate of what attention code does, with its counter-examples."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import files
from attnlab.api.calling import calling, ticking, words_of
from attnlab.api.results import Shown
from attnlab.errors import Error, Interrupt
from attnlab.reports.report import Section, Table, plain

if TYPE_CHECKING:
    from attnlab.audit.answer import Answer
    from attnlab.audit.contract import Certificate, Finding


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """What an audit came to. `examples` are of its failures, each at its smallest."""

    certificate: "Certificate"
    examples: tuple[dict[str, Any], ...] = ()
    options: Mapping[str, Any] | None = None  # with which the code was made
    detail: str = ""  # what is missing in the certificate or in its examples
    command: str = ""  # that makes it again

    @property
    def target(self) -> str:
        return self.certificate.target

    @property
    def verdict(self) -> str:
        """pass, fail or incomplete."""
        return self.certificate.verdict

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def findings(self) -> "tuple[Finding, ...]":
        return self.certificate.findings

    @property
    def failed(self) -> "tuple[Finding, ...]":
        return self.certificate.failed

    @property
    def counterexamples(self) -> dict[str, str]:
        """By the name of what failed: the smallest example, in a sentence."""
        from attnlab.audit.table import smallest

        given = self.options or {}
        return {
            f"{one['name']} ({one['aspect']})" if one["aspect"] else one["name"]: smallest(
                one, given
            )
            for one in self.examples
            if one["sentence"]
        }

    @property
    def scripts(self) -> dict[str, str]:
        """By file name: a script for each failure, which shows it without this package."""
        return {one["file"]: one["script"] for one in self.examples if one["script"]}

    def plain(self) -> dict[str, Any]:
        """What `attnlab audit --json` prints."""
        more = {"detail": self.detail} if self.detail else {}
        return {**self.certificate.plain(), **more}

    def save(self, path: str | Path) -> Path:
        """Write the certificate as one HTML page."""
        from attnlab.audit.certificate import page

        with calling():
            content = page(self.certificate, self.examples, self.command).encode()
            files.write_whole(Path(path).resolve(), content)
        return Path(path)

    def section(self) -> Section:
        rows = [[one.title, one.verdict, one.detail] for one in self.findings]
        table = Table(title="Findings", columns=["property", "verdict", "detail"], rows=rows)
        return Section(heading=f"{self.target}: {self.verdict}", text=self.detail, blocks=[table])

    def __repr__(self) -> str:
        lines = [repr(self.certificate)]
        lines += [f"  smallest, {name}: {said}" for name, said in self.counterexamples.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        said = "".join(
            f"<li><strong>{escape(plain(name))}</strong>: {escape(plain(sentence))}</li>"
            for name, sentence in self.counterexamples.items()
        )
        smallest = f"<p>The smallest examples:</p><ul>{said}</ul>" if said else ""
        return f"{self.certificate._repr_html_()}{smallest}"


def audit(
    target: Any,
    *words: str,
    declare: Mapping[str, Any] | Sequence[str] = (),
    contract: str | Path | None = None,
    timeout: float = 60.0,
    memory: float = 8.0,
    device: str = "cpu",
    **options: Any,
) -> Audit:
    """Find out what attention code does, and hold it to what is declared, as `attnlab audit` does.

    attnlab.audit("mine.py:Mine", width=32, declare={"causal": True, "window": 8})
    attnlab.audit(Mine(width=32), declare={"causal": True})

    A target is named as on the command line, and audited in a process of its own, within `timeout`
    seconds and `memory` GiB. `options` are those of its constructor. A module or a function that
    is there already is audited in this process, without limits and without counter-examples;
    `options` then say what cannot be seen of it, such as width=32.
    """
    pairs = [declare] if isinstance(declare, str) else declare
    declared = words_of([], pairs) if isinstance(pairs, Mapping) else words_of(pairs, {})
    given = words_of(words, options)
    if not isinstance(target, str):
        return _audit_object(target, given, declared, contract, device)
    command = ["audit", target, *given, *(f"--declare={word}" for word in declared)]
    with calling(command), ticking() as tick:
        from attnlab.audit import sandbox
        from attnlab.audit.declaration import read_contract
        from attnlab.audit.subject.load import options_of
        from attnlab.audit.sweep import is_sweep

        request = sandbox.Request(
            target=target,
            options=tuple(given),
            contract=read_contract(None if contract is None else Path(contract), declared),
            device=device,
        )
        if is_sweep(target):
            raise Error(f"{target} is many targets; audit them by the command attnlab audit")
        limits = sandbox.Limits(seconds=timeout, gibibytes=memory)
        answer = sandbox.audit_in_child(request, limits, tick)
        certificate = _certificate(answer)
        made_with = options_of(given)
    return Audit(
        certificate=certificate,
        examples=answer.examples,
        options=made_with,
        detail=answer.detail,
        command=shlex.join(["attnlab", *command]),
    )


def _certificate(answer: "Answer") -> "Certificate":
    if answer.interrupted:
        raise Interrupt(answer.detail)
    if answer.certificate is not None:
        return answer.certificate
    if not answer.traceback:
        raise Error(answer.detail)
    error = Error(f"{answer.target} was not audited: {answer.detail}; please report this")
    error.add_note(answer.traceback)
    raise error


def _audit_object(
    code: object,
    given: Sequence[str],
    declared: Sequence[str],
    contract: str | Path | None,
    device: str,
) -> Audit:
    """Of an object that is there already: it cannot go to another process.

    What is given tells what cannot be found out by looking at it, such as its width.
    """
    with calling(), ticking() as tick:
        from attnlab.audit.declaration import read_contract
        from attnlab.audit.errors import SubjectError
        from attnlab.audit.examine import audit as examine
        from attnlab.audit.subject.adapters import refuse_untold
        from attnlab.audit.subject.load import options_of

        agreed = read_contract(None if contract is None else Path(contract), declared)
        told = options_of(given)
        refuse_untold(code, told)
        try:
            found = examine(code, options=told, device=device, tick=tick, **agreed.declared())
        except SubjectError as error:
            raise Error(str(error)) from None
    return Audit(certificate=found)
