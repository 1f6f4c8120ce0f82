"""`attnlab check hostile`: files, folders and code from a stranger get nothing done.

Every payload meets the code as a person runs it, in a process of its own. It must not execute,
change, delete, show, hang or use up anything; what is refused is one line and exit code 2. Each
family has controls: the same traps before a naive reader, which the same detectors must catch.
A family with a control that is not caught proves nothing, and the check fails.

It runs on Linux only: elsewhere nobody can see what a payload has left running.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from attnlab.checks import Tick
from attnlab.checks.hostile.catalogue import NAMES
from attnlab.config import setting, settings
from attnlab.reports.report import Table
from attnlab.reports.terminal import grid
from attnlab.stop import stoppable

OWN_ENVIRONMENT = Path("/proc/self/environ")


@settings
class HostileCheck:
    family: str | None = setting(
        None, choices=NAMES, none="all", about="payloads to try: those of one family"
    )
    sample: int | None = setting(
        None, low=1, none="all", about="payloads of each family to try; controls are always tried"
    )
    workers: int = setting(2, low=1, about="payloads tried at once")

    def run(self, tick: Tick) -> dict[str, Any]:
        _refuse_without_detectors()
        tick("making files to forge")
        found: list[dict[str, Any]] = []

        def done() -> str:
            return f"{len(found)} of {found[0]['of']} payloads and controls" if found else "none"

        with stoppable(done, lambda: _so_far(found)), _runner(self) as lines:
            for row in lines:
                found.append(row)
                tick(f"{len(found)} of {row['of']}, {row['family']}: {row['name']}")
        return report(found)

    def show(self, found: Mapping[str, Any], screen: Console) -> None:
        show(found, screen)


def _refuse_without_detectors() -> None:
    """A detector that cannot see finds nothing wrong, which would look like a pass."""
    if not OWN_ENVIRONMENT.exists():
        raise ValueError(
            "check hostile runs on Linux only: it finds what a payload left running by "
            f"{OWN_ENVIRONMENT.parent.parent}, which this system does not have; "
            "run it in a Linux container"
        )


@contextmanager
def _runner(check: HostileCheck) -> Iterator[Iterator[dict[str, Any]]]:
    """The process that forks a process for each payload: one with threads of its own could not."""
    command = [sys.executable, "-m", "attnlab.checks.hostile.runner"]
    command += [check.family or "", str(check.sample or 0), str(check.workers)]
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield map(json.loads, process.stdout)
        if process.wait():
            raise RuntimeError(f"the runner of the payloads ended with code {process.returncode}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # it ends what it has started
            process.wait()
        process.stdout.close()


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    families = {}
    for name in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == name]
        payloads = [row for row in mine if not row["control"] and not row["not_promised"]]
        controls = [row for row in mine if row["control"]]
        families[name] = {
            "payloads": len(payloads),
            "held": sum(not row["problems"] for row in payloads),
            "controls": len(controls),
            "caught": sum(row["control"] in row["problems"] for row in controls),
        }
    judged = [row for row in rows if not row["control"] and not row["not_promised"]]
    beyond = [row for row in rows if row["not_promised"]]
    blind = [name for name, one in families.items() if one["caught"] < max(one["controls"], 1)]
    return {
        "payloads": len(judged),
        "held": sum(not row["problems"] for row in judged),
        "families": families,
        "broken": [_plain(row) for row in judged if row["problems"]],
        "controls_missed": [
            _plain(row) for row in rows if row["control"] and row["control"] not in row["problems"]
        ],
        "prove_nothing": blind,
        "not_promised": [
            {**_plain(row), "because": row["not_promised"]} for row in beyond if row["problems"]
        ],
        "tried_again": [row["name"] for row in rows if row["again"]],
        "slowest": max(
            ({"payload": row["name"], "seconds": row["seconds"]} for row in rows),
            key=lambda one: one["seconds"],
            default=None,
        ),
        "passed": bool(judged) and not blind and not any(row["problems"] for row in judged),
    }


def _so_far(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a check that was stopped: a family whose controls had no time yet is not a blind one."""
    found = report(rows)
    return {key: found[key] for key in ("payloads", "held", "broken", "controls_missed")}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    seen = "; ".join(f"{what}: {detail}" for what, detail in row["problems"].items())
    return {"payload": f"{row['family']}: {row['name']}", "seen": seen or "nothing"}


def show(found: Mapping[str, Any], screen: Console) -> None:
    columns = ["family", "payloads", "held", "controls", "caught"]
    rows = [
        [name, *(one[column] for column in columns[1:])] for name, one in found["families"].items()
    ]
    screen.print(grid(Table(title="Payloads", columns=columns, rows=rows)))
    for title, key in (
        ("broken", "broken"),
        ("control not caught, so its family proves nothing", "controls_missed"),
        ("not promised", "not_promised"),
    ):
        for one in found[key]:
            line = f"{title}: {one['payload']}: {one['seen']}"
            if "because" in one:
                line += f" ({one['because']})"
            screen.print(escape(line), highlight=False, soft_wrap=True)
    if again := found["tried_again"]:
        line = f"late on a busy machine, and tried again alone: {', '.join(again)}"
        screen.print(escape(line), highlight=False, soft_wrap=True)
    caught = sum(one["caught"] for one in found["families"].values())
    controls = sum(one["controls"] for one in found["families"].values())
    line = f"{found['held']} of {found['payloads']} payloads held, {caught} of {controls} controls"
    screen.print(f"{line} caught", highlight=False, soft_wrap=True)
