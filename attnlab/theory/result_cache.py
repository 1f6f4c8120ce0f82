"""Results of claims that were settled before a run of many was stopped; the next one goes on there.

    <cache>/claims/<identity>.jsonl     a line for each settled claim: its result, and a hash

The identity is a hash of the claims with their settings, of our code, and of the machine: a result
of any other is never used. A run that comes to its end removes the file, so the next one settles
everything anew.
"""

import dataclasses
import hashlib
import inspect
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

import attnlab
from attnlab import config, files, json_files
from attnlab.kernels.hardware import machine, machine_id
from attnlab.printable import one_line
from attnlab.theory.claim import Claim, ErrorRates, Evidence, Judgement, Measure
from attnlab.theory.record import block_of
from attnlab.theory.result import ClaimResult

CODE = (".py", ".c", ".h")
LONGEST = 7 * 24 * 3600  # seconds that a file waits for a run to go on


class ResultCache:
    """The results of some claims, as far as a run has come.

    `reason`: why none are kept. `unusable`: lines that are damaged or of something else; their
    claims are settled anew.
    """

    def __init__(self, claims: Mapping[str, Claim], *, again: bool = False) -> None:
        self.found: dict[str, ClaimResult] = {}
        self.reason = ""
        self.unusable = 0
        self._path: Path | None = None
        if len(claims) == 1:  # what is stopped has settled nothing
            return
        try:
            folder = files.cache_folder() / "claims"
            files.make_folder(folder)
            _remove_old(folder)
            self._path = folder / f"{identity(claims)}.jsonl"
            if again:
                self.remove()
            elif self._path.exists():
                self.found, self.unusable = _read(self._path, claims)
        except OSError as error:
            self.reason, self._path = str(error.strerror or error), None

    def add(self, result: ClaimResult) -> None:
        if self._path is None or result.name in self.found:
            return
        try:
            files.append(self._path, json_files.sealed_json(_plain(result), indent=None))
        except (OSError, TypeError, ValueError) as error:  # a full disk; a claim of somebody else's
            self.reason, self._path = one_line(error), None

    def remove(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def identity(claims: Mapping[str, Claim]) -> str:
    """Of what decides the results: settings, code and machine."""
    asked = {name: config.to_dict(claim) for name, claim in claims.items()}
    here = [machine(torch.device("cpu")), machine_id(), torch.cuda.is_available()]
    theirs = {str(path): _digest_of(path) for path in sorted(_sources(claims))}
    made_from = json.dumps([asked, here, _our_code(), theirs], sort_keys=True, default=str)
    return _digest(made_from)[:16]


def _sources(claims: Mapping[str, Claim]) -> set[Path]:
    """The files of claims that other packages have registered."""
    named = {inspect.getsourcefile(type(claim)) for claim in claims.values()}
    paths = {Path(one) for one in named if one is not None}
    return {path for path in paths if not path.is_relative_to(_package())}


def _package() -> Path:
    assert attnlab.__file__ is not None
    return Path(attnlab.__file__).parent


@cache
def _our_code() -> str:
    paths = sorted(path for path in _package().rglob("*") if path.suffix in CODE)
    return _digest("".join(f"{path} {_digest_of(path)}" for path in paths))


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, claims: Mapping[str, Claim]) -> tuple[dict[str, ClaimResult], int]:
    """The results of the lines that are whole, and how many are not."""
    found, unusable = dict[str, ClaimResult](), 0
    for line in files.read(path).splitlines(keepends=True):
        try:
            plain = json_files.unseal(line, path, indent=None)
            found[plain["name"]] = _result(plain, claims)
        except (ValueError, LookupError, TypeError, AttributeError):
            unusable += 1
    return found, unusable


def _remove_old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > LONGEST:
                path.unlink()


def _plain(result: ClaimResult) -> dict[str, Any]:
    parts = {"evidence": result.evidence, "knob_evidence": result.knob_evidence}
    return {"name": result.name, **{name: _plain_evidence(one) for name, one in parts.items()}}


def _result(plain: Mapping[str, Any], claims: Mapping[str, Claim]) -> ClaimResult:
    return ClaimResult(
        name=plain["name"],
        claim=claims[plain["name"]],
        evidence=_evidence(plain["evidence"]),
        knob_evidence=_evidence(plain["knob_evidence"]),
    )


def _plain_evidence(evidence: Evidence) -> dict[str, Any]:
    rates = evidence.error_rates
    return {
        "kind": evidence.kind,
        "trials": evidence.trials,
        "measures": [one.plain() for one in evidence.measures],
        "outside": [one.plain() for one in evidence.outside],
        "judgements": {key: dataclasses.asdict(one) for key, one in evidence.judgements.items()},
        "picture": _plain_block(evidence.picture),
        "details": [_plain_block(one) for one in evidence.details],
        "error_rates": None if rates is None else dataclasses.asdict(rates),
    }


def _evidence(plain: Any) -> Evidence:
    rates = plain["error_rates"]
    picture: Any = block_of(plain["picture"])
    return Evidence(
        kind=plain["kind"],
        trials=plain["trials"],
        measures=[Measure.from_plain(one) for one in plain["measures"]],
        outside=[Measure.from_plain(one) for one in plain["outside"]],
        judgements={key: Judgement(**one) for key, one in plain["judgements"].items()},
        picture=picture,
        details=[block_of(one) for one in plain["details"]],
        error_rates=None if rates is None else ErrorRates(**rates),
    )


def _plain_block(block: Any) -> dict[str, Any]:
    return {"type": type(block).__name__, **dataclasses.asdict(block)}
