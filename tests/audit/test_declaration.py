"""What is declared: words win over a file, and never over each other."""

import os
from pathlib import Path

import pytest

from attnlab import files
from attnlab.audit.contract import Contract
from attnlab.audit.declaration import read_contract


def test_words_win_over_the_file(tmp_path):
    path = tmp_path / "contract.json"
    path.write_text('{"causal": true, "window": 3}')
    assert read_contract(path, ["window=5"]) == Contract(causal=True, window=5)
    assert read_contract(None, ["causal=true", "causal=True"]) == Contract(causal=True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["causal=true", "window=3", "causal=false"], "causal is declared twice, as true and as f"),
        (["window=3", "window=5"], "window is declared twice, as 3 and as 5; declare it once"),
        (["casual=true"], "did you mean 'causal'"),
    ],
)
def test_two_values_of_one_field_are_refused(words, line):
    with pytest.raises(ValueError, match=line):
        read_contract(None, words)


def test_a_file_that_cannot_be_read_is_said_in_words(tmp_path):
    for path, what in ((tmp_path / "absent.json", "is no file"), (tmp_path, "cannot be read")):
        with pytest.raises(ValueError, match=f"--contract .* {what}.*give a JSON file") as slip:
            read_contract(path, [])
        assert "Errno" not in str(slip.value)


def test_a_fifo_and_a_device_are_not_waited_for_and_a_link_is_followed(tmp_path):
    real, link, pipe = (tmp_path / name for name in ("real.json", "link.json", "pipe"))
    real.write_text('{"causal": true}')
    link.symlink_to(real)
    assert read_contract(link, []) == Contract(causal=True)
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match=r"cannot be read \(it is no plain file\)"):
            read_contract(path, [])
    with real.open("wb") as file:
        file.truncate(files.NAMED + 1)
    with pytest.raises(ValueError, match=r"cannot be read \(it has more than 64 MiB\)"):
        read_contract(link, [])
