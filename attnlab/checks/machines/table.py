"""What `attnlab check machines` found, as tables: for the terminal and for docs/machines.md."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from rich.console import Console
from rich.markup import escape

from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Report, Section, Table
from attnlab.reports.terminal import grid

COMMAND = "attnlab check machines docs=docs"


def show(report: Mapping[str, Any], screen: Console) -> None:
    for one in tables(report):
        screen.print(grid(one))
        for part in one.note.removesuffix(".").split("; ") if one.note else []:
            screen.print(escape(part), highlight=False, style="dim")
        screen.print()
    for line in complaints(report):
        screen.print(f"[bold red]{escape(line)}[/]", highlight=False, soft_wrap=True)
    screen.print(answer(report), highlight=False, soft_wrap=True)


def document(report: Mapping[str, Any]) -> str:
    hardware = report["hardware"]
    machine = (
        f"{date.today():%Y-%m-%d}, {hardware.get('cpu')}, {hardware.get('cores')} cores, "
        f"{hardware.get('instructions')}, torch {hardware.get('torch')}."
    )
    first, *others = tables(report)
    text, _ = as_markdown(
        Report(
            title="The same answer on every machine",
            question="Do verdicts, kernels, decoding and documents come out the same on other "
            "machines, imitated on this one, and with other seeds?",
            answer=answer(report),
            sections=[
                Section(heading="Machines", text=machine, blocks=[first]),
                Section(heading="What moves", text=_MOVES, blocks=others),
                *(
                    [Section(heading="What is wrong", text="\n\n".join(complaints(report)))]
                    if not report["passed"]
                    else []
                ),
            ],
            command=COMMAND,
            seconds=report["seconds"],
        ),
        "pictures",
    )
    return text


_MOVES = """Numbers differ between machines in their last digits. A margin says how far a number is
from its bound, as a part of the larger of the two: 0.01 is a hundredth away, 0.5 a factor of two,
0.9 a factor of ten. Only numbers that move on some machine or with some seed are listed: one that
is the same everywhere, such as a count, may be as near to its bound as it likes."""


def answer(report: Mapping[str, Any]) -> str:
    rows = report["machines"]
    seeds = sum(row["imitated_by"].startswith("seed=") for row in rows)
    count = f"{len(rows) - seeds} machines and {seeds} more seed{'' if seeds == 1 else 's'}"
    if report["passed"]:
        return f"On {count} no verdict changes, and every error is within its limit."
    wrong = [row["machine"] for row in rows if not row["passed"]]
    if not wrong:
        return "With nothing to compare it with there is no answer."
    return f"Of {count}, these are not as they should be: {', '.join(wrong)}."


def complaints(report: Mapping[str, Any]) -> list[str]:
    """What is wrong, a line each."""
    lines = []
    if len(report["machines"]) == 1:
        lines.append("nothing was compared: this machine imitates none that were asked for")
    for row in report["machines"]:
        name = row["machine"]
        lines += [f"{name}: {row['error']}"] if row["error"] else []
        if not row["error"] and not row["examined"]:
            lines.append(f"{name}: nothing was examined; choose other parts or claims")
        lines += [f"{name}: {change}" for change in row["verdicts_changed"]]
        lines += [f"{name}: another greedy text from {case}" for case in row["texts_changed"]]
        lines += [f"{name}: {one}" for one in row["documents"]["off"]]
        for part in ("kernels", "decoding"):
            worst = row[part]["worst"]
            if worst is not None and worst > 1:
                lines.append(f"{name}: {part}, {row[part]['case']}: {worst:.3g} of the limit")
    return lines


def tables(report: Mapping[str, Any]) -> list[Table]:
    return [one for one in (_machines(report), _margins(report), _moves(report)) if one.rows]


def _machines(report: Mapping[str, Any]) -> Table:
    rows = []
    for row in report["machines"]:
        nearest, texts = row["smallest_margin"], len(row["texts_changed"])
        rows.append(
            [
                row["machine"],
                "failed" if row["error"] else len(row["verdicts_changed"]),
                # the machine as it is is what the others are compared with
                f"{row['moved']} of {row['numbers']}" if row is not report["machines"][0] else None,
                f"{nearest[0]['margin']:.2g} {nearest[0]['claim']}" if nearest else None,
                _part(row["kernels"]),
                _part(row["decoding"]),
                texts if row["decoding"]["cases"] else None,
                len(row["documents"]["off"]) if row["documents"]["compared"] else None,
                round(row["seconds"]),
            ]
        )
    columns = ["machine", "verdicts changed", "numbers moved", "smallest margin"]
    columns += ["kernels", "decoding", "texts changed", "documents off", "s"]
    return Table(title="", columns=columns, rows=rows, note=_note(report))


def _note(report: Mapping[str, Any]) -> str:
    others = (row for row in report["machines"] if not row["machine"].startswith("seed-"))
    imitated = [f"{row['machine']} by {row['imitated_by']}" for row in others if row["imitated_by"]]
    left_out = (f"{name} {why}" for name, why in report["not_imitated"].items())
    parts = [
        "Kernels and decoding: the worst error as a part of its limit, and of how many cases",
        "a number moved if one bit of it is not that of the machine as it is",
        "its margin is its distance from its bound as a part of the larger of the two",
        f"imitated: {', '.join(imitated)}" if imitated else "",
        f"not imitated: {', '.join(left_out)}" if report["not_imitated"] else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _part(part: Mapping[str, Any]) -> str | None:
    return None if part["worst"] is None else f"{part['worst']:.2g} of {part['cases']}"


def _margins(report: Mapping[str, Any]) -> Table:
    rows = [
        [one["claim"], one["what"], one["value"], f"{one['rule']} {one['bound']:g}", one["margin"]]
        for one in report["smallest_margins"]
    ]
    columns = ["claim", "measure", "value here", "bound", "margin"]
    return Table(title="Smallest margins of the numbers that move", columns=columns, rows=rows)


def _moves(report: Mapping[str, Any]) -> Table:
    rows = [
        [one["claim"], one["what"], one["machine"], one["before"], f"{one['part']:.1e}"]
        for one in report["largest_moves"]
    ]
    columns = ["claim", "measure", "furthest on", "value here", "moved by, of itself"]
    return Table(title="Largest moves between machines", columns=columns, rows=rows)
