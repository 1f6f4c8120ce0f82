"""What the audit of mutants came to, as a table by operator and a list of survivors."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from attnlab.reports.report import Table
from attnlab.reports.terminal import grid

COLUMNS = ("mutants", "found", "missed", "incomplete", "error", "equivalent", "broken")


def show_mutants(report: Mapping[str, Any], screen: Console) -> None:
    rows = [
        [one["operator"], *(one[name] for name in COLUMNS), ", ".join(one["found_by"])]
        for one in report["operators"]
    ]
    total = ["all", *(report[name] for name in COLUMNS), ""]
    title = "Bugs made by program, by operator"
    columns = ["operator", *COLUMNS, "found by"]
    screen.print(grid(Table(title=title, columns=columns, rows=[*rows, total])))
    for name, key in (("not found", "survivors"), ("wrongly flagged", "false_alarms")):
        for one in report[key]:
            change = f"{one['before']}  →  {one['after']}"
            text = f"{name}: {one['original']}, {one['operator']}: {change} ({one['came_to']})"
            _say(f"{text} {one['reason']}", screen)
    verdict = "passed" if report["passed"] else "failed"
    _say(
        f"{verdict}: {report['found']} of {report['mutants']} mutants are found "
        f"({100 * report['recall']:.1f} %; without causality "
        f"{100 * report['control_recall_without_causality']:.1f} %), "
        f"{len(report['false_alarms'])} false alarms over {report['originals']} originals and "
        f"{report['equivalent']} mutants that are no bugs; {report['seconds']} s of computing",
        screen,
    )


def _say(text: str, screen: Console) -> None:
    screen.print(escape(" ".join(text.split())), highlight=False, soft_wrap=True)
