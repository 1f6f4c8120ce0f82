"""The process that tries payloads: `python -m attnlab.checks.hostile.runner FAMILY SAMPLE WORKERS`.

It imports everything once and has no threads, so that each payload gets a copy of it within
milliseconds. It prints a line of JSON for each.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from attnlab.checks.hostile import acts, catalogue
from attnlab.checks.hostile.observe import Observation, observe
from attnlab.checks.hostile.trial import Family, Trial

# what the verbs import; a copy of this process need not do it again
VERBS = (
    *("attnlab.cli", "attnlab.audit.sandbox", "attnlab.audit.sweep", "attnlab.audit.hf.models"),
    *("attnlab.training.saved", "attnlab.training.examine", "attnlab.training.listing"),
)


def main() -> None:
    family, sample, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, _stop)
    torch.set_num_threads(1)  # copies of a process do not have its threads
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("COLUMNS", None)
    for module in VERBS:
        importlib.import_module(module)
    chosen = [catalogue.family(name) for name in catalogue.NAMES if family in ("", name)]
    trials = [(one, trial) for one in chosen for trial in some(one, sample)]
    with tempfile.TemporaryDirectory(prefix="attnlab-hostile-") as place:
        template = Path(place).resolve() / "template"
        template.mkdir()
        _in_a_copy(template)
        families = {id(trial): one.name for one, trial in trials}
        room = template.parent / "trials"
        for seen in observe([trial for _, trial in trials], template, room, workers):
            row = {**plain(seen), "family": families[id(seen.trial)], "of": len(trials)}
            print(json.dumps(row), flush=True)


def some(family: Family, sample: int) -> Iterator[Trial]:
    """The first payloads of a family, or all, and its controls."""
    yield from family.payloads[: sample or None]
    yield from family.controls


def plain(seen: Observation) -> dict[str, Any]:
    trial = seen.trial
    return {
        "name": trial.name,
        "control": trial.caught,
        "not_promised": trial.not_promised,
        "problems": seen.problems,
        "code": seen.code,
        "seconds": round(seen.seconds, 2),
        "mebibytes": round(seen.mebibytes),
        "again": seen.again,
        "end": seen.output[-600:],
    }


def _in_a_copy(template: Path) -> None:
    """Computing starts threads, which a process that is to be copied must not have."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for handle in (1, 2):  # what is printed on the way is no row, and nobody's concern
                os.dup2(nowhere, handle)
            acts.make_template(template)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the files to be forged could not be made")


def _stop(*_: Any) -> NoReturn:
    """Ends what runs, and takes the folder away."""
    raise SystemExit(1)


if __name__ == "__main__":
    main()
