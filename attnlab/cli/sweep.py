"""The audit of many targets: progress, a table, and how to go on after Ctrl-C."""

import shlex
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.text import Text

from attnlab.cli.app import errors, print_json, screen
from attnlab.cluster import Cluster

if TYPE_CHECKING:
    from attnlab.audit.sandbox import Limits, Request

COLOURS = {"pass": "green", "fail": "bold red", "not applicable": "dim"}  # others are yellow


def sweep_targets(
    request: "Request",
    limits: "Limits",
    as_json: bool,
    out: Path | None,
    resume: bool,
    cluster: Cluster | None = None,
) -> NoReturn:
    """Ends with the exit code of the worst row, or of the signal that stopped it."""
    from attnlab.audit.rows import RowFile, count, exit_code
    from attnlab.audit.sweep import jobs_of, sweep

    if resume and out is None:
        raise ValueError("--resume needs the file to go on with; add --out rows.jsonl")
    jobs = jobs_of(request)
    file = None if out is None else RowFile(out, resume)
    seen = [row for job in jobs if (row := job.row_in(file)) is not None]
    with file.writing() if file else nullcontext(), errors.status("starting") as status:

        def tick(done: int, total: int, row: dict[str, Any], left: float) -> None:
            seen.append(row)
            line = f"{done}/{total} {row['line']}: {row['verdict']} ({count(seen)}; {_time(left)})"
            if errors.is_terminal:
                status.update(Text(line))
            else:
                errors.print(Text(line), soft_wrap=True)

        crew = None
        if cluster is not None:
            from attnlab.audit.on_ray import crew_on

            crew = partial(crew_on, cluster, limits)
        found = sweep(jobs, tick, limits=limits, out=file, crew=crew)
    if as_json:
        print_json(found.rows)
    else:
        _show(found.rows)
    if not found.left:
        raise typer.Exit(exit_code(found.rows))
    again = [word for word in sys.argv[1:] if word != "--resume"]
    again += ["--resume"] if out is not None else ["--out", "rows.jsonl"]
    line = f"stopped with {found.left} of {len(jobs)} left; to "
    line += "go on: " if out is not None else "start anew and keep rows: "
    errors.print(Text(line + shlex.join(["attnlab", *again])), soft_wrap=True)
    raise typer.Exit(128 + found.signal)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"


def _show(rows: list[dict[str, Any]]) -> None:
    """Counts by family, then the rows that are no pass."""
    from attnlab.audit.rows import by_family
    from attnlab.audit.sweep import by_backend

    for family, counts in by_family(rows).items():
        screen.print(Text(f"{family:10} {counts}"), soft_wrap=True)
    if ways := by_backend(rows):
        listed = "; ".join(f"{name}: {counts}" for name, counts in ways.items())
        screen.print(Text(f"backends   {listed}"), soft_wrap=True)
    for row in (row for row in rows if row["verdict"] != "pass"):
        verdict = (f"{row['verdict']:12} ", COLOURS.get(row["verdict"], "yellow"))
        reason = row.get("reason") or row.get("detail", "")
        screen.print(Text.assemble(f"{row['line']:32} ", verdict, reason), soft_wrap=True)
