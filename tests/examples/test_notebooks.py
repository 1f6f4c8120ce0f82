"""The notebooks run from their first cell to their last, with small sizes, in an empty folder."""

import os
import warnings
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def read(name):
    return nbformat.read(EXAMPLES / name, as_version=4)


def outputs(book):
    return [one for cell in book.cells if cell.cell_type == "code" for one in cell.outputs]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_its_results_show_themselves(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_EXAMPLES", "small")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(
            [str(EXAMPLES.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
    )
    book = read(name)
    client = nbclient.NotebookClient(
        book, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that talk to the kernel
        client.execute()
    shown = [one.data.get("text/html", "") for one in outputs(book) if "data" in one]
    assert any("<svg" in html for html in shown)
    assert not any("<script" in html for html in shown)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name):
    """So that a change of it shows as the change of its text."""
    for cell in read(name).cells:
        assert cell.get("execution_count") is None and not cell.get("outputs") and not cell.metadata
