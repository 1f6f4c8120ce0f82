"""A benchmark's report as tables on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table


def show(report: dict[str, Any], screen: Console) -> None:
    settings = report["settings"]
    turned = " with rotary positions" if settings["rotary"] else ""
    screen.print(
        f"sliding-window attention on {report['device']}, {report['dtype']}, "
        f"{report['threads']} threads, batch {settings['batch']}, {settings['heads']} heads of "
        f"{settings['width']}{turned}; median ms of up to {settings['turns']} turns; "
        "ratio = ours / theirs",
        highlight=False,
    )
    table = Table("length", "window", box=None, header_style="bold")
    table.add_column("who", no_wrap=True)
    on_cuda = report["device"] != "cpu"
    rates = ("TFLOP/s",) if on_cuda else ()
    for heading in ("forward", "ratio", *rates, "+ backward", "ratio", *rates, "peak MB"):
        table.add_column(heading, justify="right")
    ratios = {(place["length"], place["window"]): place for place in report["ratios"]}
    last = None
    for row in report["rows"]:
        place = (row["length"], row["window"])
        if last not in (None, place):
            table.add_row()
        first = place != last
        last = place
        cells = [f"{row['length']:,}" if first else "", f"{row['window']:,}" if first else ""]
        if row["wrong"]:
            table.add_row(*cells, row["name"], f"[red]wrong: {row['wrong']}[/]")
            continue
        for what, name in (("forward", "forward"), ("both", "forward + backward")):
            cells += [_time(row[what], on_cuda), _number(ratios[place][name].get(row["name"]))]
            cells += [f"{row['rates'].get(name, 0):,.0f}"] if on_cuda else []
        memory = "–" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        table.add_row(*cells[:2], row["name"], *cells[2:], memory)
    screen.print(table)
    for place in report["ratios"]:
        best = ", ".join(f"{name} {_number(ratio)}" for name, ratio in place["best"].items())
        where = f"length {place['length']:,}, window {place['window']:,}"
        screen.print(f"ours / the best peer's at {where}: {best}", highlight=False)
    for note in dict.fromkeys(f"{r['name']}: {r['note']}" for r in report["rows"] if r["note"]):
        screen.print(note, highlight=False, markup=False)
    for line in _left_out(report):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    for axis, found in report["exponents"].items():
        if found["forward"] is None:
            continue
        screen.print(
            f"our time grows as {axis} to the power {_number(found['forward'])} (forward), "
            f"{_number(found['forward + backward'])} (with backward)",
            highlight=False,
        )


def _left_out(report: dict[str, Any]) -> list[str]:
    """A line for each peer and reason: left out everywhere, or at which sizes."""
    places = {(row["length"], row["window"]) for row in report["rows"]}
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one in report["left_out"]:
        found.setdefault((one["name"], one["reason"]), []).append((one["length"], one["window"]))
    lines = []
    for (name, reason), at in found.items():
        some = ", ".join(f"{length:,} × {window:,}" for length, window in at)
        where = "" if set(at) == places else f" at length × window {some}"
        lines.append(f"{name} is left out{where}: {reason}")
    return lines


def _time(timing: dict[str, Any] | None, finely: bool) -> str:
    if timing is None:
        return "–"
    return f"{timing['median']:,.3f}" if finely else f"{timing['median']:,.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
