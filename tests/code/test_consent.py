"""Code that only a file names is not run; code that a person names is, and stays what it was."""

import shutil

import pytest

from attnlab import config, json_files, registry
from attnlab.code import consent
from attnlab.code.own import allow_named
from attnlab.models.transformer import TransformerSettings
from attnlab.training.launch import recipe_for

CODE = """
from pathlib import Path
Path("ran").touch()

def attend(q, k, v):
    return v

def other(q, k, v):
    return v
"""
WORDS = ["attention=mine.py:attend", "width=12", "attention.heads=2", "depth=1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A machine on which nothing was named yet."""
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.setattr(consent, "_allowed", set())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here/mine.py").write_text(CODE)
    return tmp_path / "here"


def from_file(words):
    """Settings as a stranger's run folder has them."""
    plain = config.to_dict(config.override(TransformerSettings(), words))
    return config.from_dict(TransformerSettings, plain)


def forget(monkeypatch):
    """What a later process does not know."""
    monkeypatch.setattr(consent, "_allowed", set())


@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        ["attention=os:system", "attention.command=touch ran"],
        ["score=os:system", "score.command=touch ran"],
        ["positions=os:system", "positions.command=touch ran"],
    ],
)
def test_code_that_only_a_file_names_is_not_run(folder, words):
    settings = from_file(words)
    with pytest.raises(ValueError, match=r"never named on this machine.* attnlab trust \S+:\w+"):
        settings.build()
    assert not (folder / "ran").exists()


def test_a_whole_model_is_not_run_either(folder):
    made = registry.load("model", "os:system")
    with pytest.raises(ValueError, match="never named on this machine"):
        made(source="", given=(("command", "touch ran"),)).build()
    assert not (folder / "ran").exists()


def test_what_a_person_names_is_run_now_and_later(folder, monkeypatch):
    settings = from_file(WORDS)
    allow_named(settings, WORDS)
    settings.build()
    assert (folder / "ran").exists()
    forget(monkeypatch)
    settings.build()


def test_words_name_it_and_a_file_of_settings_does_not(folder, monkeypatch):
    word = "model.attention=mine.py:attend"
    plain = config.to_dict(config.override(registry.load("preset", "tiny")(), [word]))
    file = folder / "config.json"
    file.write_bytes(json_files.as_json(plain))
    with pytest.raises(ValueError, match="never named on this machine"):
        recipe_for("tiny", [], file).model.build()
    recipe_for("tiny", [word], file).model.build()
    forget(monkeypatch)
    recipe_for("tiny", [], file).model.build()


@pytest.mark.parametrize("change", ["edited", "another name", "elsewhere"])
def test_what_was_named_is_that_code_at_that_place(folder, monkeypatch, change):
    allow_named(from_file(WORDS), WORDS)
    words = list(WORDS)
    if change == "edited":
        (folder / "mine.py").write_text(CODE + "# more\n")
    elif change == "another name":
        words[0] = "attention=mine.py:other"
    else:
        (folder / "copy").mkdir()
        shutil.copy(folder / "mine.py", folder / "copy")
        monkeypatch.chdir(folder / "copy")
    with pytest.raises(ValueError, match="never named on this machine"):
        from_file(words).build()


def test_a_folder_that_others_may_write_to_is_no_memory(folder, monkeypatch):
    def refuse():
        raise PermissionError("others may write there")

    monkeypatch.setattr(consent.files, "cache_folder", refuse)
    settings = from_file(WORDS)
    with pytest.raises(ValueError, match="never named"):
        settings.build()
    allow_named(settings, WORDS)
    settings.build()  # of this process, since it was named here


def test_the_record_says_which_code_it_was():
    allow_named(from_file(WORDS), WORDS)
    (record,) = consent.Path(consent.FOLDER).glob("*.json")
    assert '"code": "mine.py:attend"' in record.read_text()
