"""Names that a stranger may give a folder, and runs and reports by them."""

import os

from attnlab.training import runs

NAMES = {  # folders as they may be called, and as they are shown
    b"20260101-000000-line\nbreak-1": "20260101-000000-line\\nbreak-1",
    b"ends-with-one\n": "ends-with-one\\n",
    b"20260101-000000-\x1b[31mred\x07-2": "20260101-000000-\\x1b[31mred\\x07-2",
    b"<script>alert(1)<": "<script>alert(1)<",
    b"<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
    b"bytes-\xff\xfe-3": "bytes-\\udcff\\udcfe-3",
    "turned-\u202e-4".encode(): "turned-\\u202e-4",
    rb"back\nslash": r"back\\nslash",
    b"100%20,?&#+ \"'": "100%20,?&#+ \"'",
    "纪录-é".encode(): "纪录-é",
}


def make_runs(root):
    """A folder of runs by such names, and of studies that hold a run and a report by them."""
    for name in map(os.fsdecode, NAMES):
        for made in (root / name, root / f"study-{name}" / "runs" / name):
            made.mkdir(parents=True)
            (made / "config.json").write_text('{"steps": 3}')
            (made / "metrics.jsonl").write_bytes(runs.line({"step": 3, "loss": 1.5}))
        (root / f"study-{name}" / "report.html").write_text("<!doctype html><title>Report</title>")
    return root
