"""The record of the theory: `outcomes.json`, from which theory.md and its pictures are made.

    machines   the machines that ran the claims: {claims, machine: {cpu, torch, …}}
    outcomes   of each claim: its result, its picture and its tables, in the order of the theory

A new run replaces the outcomes of the claims that were run. All others stay as recorded.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, overload

from attnlab import json_files
from attnlab.reports.report import Block, Picture, Plot, Sample, Series, Table
from attnlab.theory import catalogue
from attnlab.theory.result import ClaimResult, PlainResult

DOCS = Path(__file__).parents[2] / "docs"  # of a checkout; an installed package has none
FOLDER = "theory"  # beside theory.md
NAME = "outcomes.json"

PlainBlock = Mapping[str, Any]  # the fields of a block of a report, and the name of its class
Facts = Mapping[str, str | int]  # about a machine: cpu, torch, threads …


class Outcome(PlainResult):
    """The result of a claim with its picture and its tables."""

    picture: PlainBlock
    details: list[PlainBlock]


class Machine(TypedDict):
    claims: list[str]  # that were run on it
    machine: Facts


class Record(TypedDict):
    machines: list[Machine]
    outcomes: list[Outcome]


def outcome_of(result: ClaimResult) -> Outcome:
    return {
        **result.plain(),
        "picture": _plain(result.evidence.picture),
        "details": [_plain(block) for block in result.evidence.details],
    }


def path_in(docs: Path) -> Path:
    return docs / FOLDER / NAME


def read(docs: Path = DOCS) -> Record:
    """The record in a folder of documents; an empty one where there is none."""
    path = path_in(docs)
    if not path.exists():
        return {"machines": [], "outcomes": []}
    found = json_files.read_json(path)
    if not isinstance(found, dict) or found.keys() != Record.__annotations__.keys():
        raise ValueError(
            f"{path} is not a record of this version of attnlab; move it away and run all claims"
        )
    record: Record = {"machines": found["machines"], "outcomes": found["outcomes"]}
    return record


def merge(record: Record, results: Sequence[ClaimResult], machine: Facts) -> Record:
    """The record with these results in it; claims that are no longer registered are left out."""
    fresh = {result.name: outcome_of(result) for result in results}
    outcomes = {outcome["name"]: outcome for outcome in record["outcomes"]} | fresh
    names = [name for name in catalogue.names() if name in outcomes]
    ran = {name: one["machine"] for one in record["machines"] for name in one["claims"]}
    ran |= dict.fromkeys(fresh, machine)
    machines: list[Machine] = []
    for name in names:
        same = next((one for one in machines if one["machine"] == ran[name]), None)
        if same is None:
            machines.append({"claims": [name], "machine": ran[name]})
        else:
            same["claims"].append(name)
    return {"machines": machines, "outcomes": [outcomes[name] for name in names]}


def block_of(plain: PlainBlock) -> Block:
    """A block of a report from its JSON."""
    types = {cls.__name__: cls for cls in (Plot, Picture, Table, Sample)}
    fields = {name: value for name, value in plain.items() if name != "type"}
    if "series" in fields:
        fields["series"] = [Series(**series) for series in fields["series"]]
    block: Block = types[plain["type"]](**fields)
    return block


def _plain(block: Block) -> PlainBlock:
    return {"type": type(block).__name__, **_round_floats(dataclasses.asdict(block))}


@overload
def _round_floats(value: dict[str, Any]) -> dict[str, Any]: ...
@overload
def _round_floats(value: object) -> object: ...
def _round_floats(value: object) -> object:
    """Six digits are more than a picture shows; the last ones differ from machine to machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _round_floats(one) for name, one in value.items()}
    return [_round_floats(one) for one in value] if isinstance(value, list | tuple) else value
