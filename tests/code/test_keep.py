"""A run keeps the source of own code to be read, and no link leads it elsewhere."""

import pytest

from attnlab import config
from attnlab.code import keep
from attnlab.models.transformer import TransformerSettings

WORDS = ["attention=mine.py:Mine"]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from parts.one import X\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/one.py").write_text("X = 1\n")
    (tmp_path / "run").mkdir()
    return config.override(TransformerSettings(), WORDS)


def test_all_that_the_fingerprint_is_of_is_kept(settings, tmp_path):
    keep.keep_source(settings, tmp_path / "run")
    assert (tmp_path / "run/code/mine.py").read_text() == "from parts.one import X\n"
    assert (tmp_path / "run/code/parts/one.py").read_text() == "X = 1\n"


def test_without_own_code_nothing_is_kept(tmp_path):
    keep.keep_source(TransformerSettings(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["code", "code/parts"])
def test_links_are_not_followed(settings, tmp_path, link):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / link).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        keep.keep_source(settings, tmp_path / "run")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_large_package_is_known_by_its_fingerprint_alone(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "MOST", 10)
    keep.keep_source(settings, tmp_path / "run")
    assert not (tmp_path / "run/code").exists()
