"""A report says which logs are damaged, which command made it, and whether rates were searched."""

import html
from dataclasses import dataclass

from experiments.small import quickly
from training.recipes import small

from attnlab.experiments.experiment import NOT_SEARCHED, Experiment, Findings, carry_out
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job
from attnlab.reports.report import Section


@dataclass
class One(Experiment):
    """A single training."""

    steps: int = 5

    def text(self):
        return "people"

    def jobs(self, workspace):
        def work():
            return len(workspace.train("one", small(f"steps={self.steps}")).read("metrics"))

        return [Job("one", work)]

    def findings(self, results):
        section = Section(heading="Rows", text=str(results["one"]))
        return Findings("One", "How many rows?", f"{results['one']} rows.", [section], {})


class Notes(Progress):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


def test_a_report_says_which_logs_are_damaged(tmp_path):
    with quickly():
        whole = carry_out("one", One(), root=tmp_path, progress=Progress())
    assert "damaged" not in whole.results
    assert "amaged" not in (whole.folder / "report.md").read_text()
    log = whole.folder / "runs" / "one" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], b"\0\0\n", *lines[2:]]))
    notes = Notes()
    again = carry_out("one", One(), root=tmp_path, progress=notes)
    said = "runs/one/metrics.jsonl: 1 line is damaged and left out"
    assert again.folder == whole.folder and again.results["damaged"] == [said]
    assert said in notes.lines
    for name in ("report.md", "report.html"):
        text = (again.folder / name).read_text()
        assert "Damaged logs" in text and said in text


@dataclass
class Searched(One):
    """Nothing is trained; what it says of its rates is a setting."""

    rates: str = ""

    def jobs(self, workspace):
        return []

    def findings(self, results):
        said = {"rates": self.rates} if self.rates else {}
        return Findings("None", "How many?", "None.", [], {}, **said)


def test_a_report_says_whether_rates_were_searched_and_which_command_makes_it_again(tmp_path):
    words = ["study", "one", "name=a b"]
    for given in ("", "Learning rates were searched over 1 and 3."):
        made = carry_out(
            "one", Searched(rates=given), root=tmp_path, progress=Progress(), command=words
        )
        for name in ("report.md", "report.html"):
            text = html.unescape((made.folder / name).read_text())
            assert (given or NOT_SEARCHED) in text and "attnlab study one 'name=a b'" in text
            assert (NOT_SEARCHED in text) == (not given)
