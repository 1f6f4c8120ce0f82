"""Which family a name or a folder is of, and what a glob stands for."""

import json
from pathlib import Path

import pytest

from attnlab.audit.errors import InputError

pytest.importorskip("transformers")

from attnlab.audit.hf.families import classes, matching, pick, with_folder


@pytest.mark.parametrize(
    ("target", "family"),
    [
        ("llama", "causal"),
        ("t5", "seq2seq"),
        ("bart", "seq2seq"),  # is in every mapping
        ("bert", "encoder"),  # is causal too, if it is made so
        ("vit", "encoder"),
        ("deberta-v2", "encoder"),
        ("xlnet", "causal"),
    ],
)
def test_a_name_is_of_the_family_that_it_is_known_for(target: str, family: str) -> None:
    assert pick(target) == (family, target)


def test_a_family_can_be_named() -> None:
    assert [pick(f"{one}/bart") for one in ("causal", "seq2seq", "encoder")] == [
        ("causal", "bart"),
        ("seq2seq", "bart"),
        ("encoder", "bart"),
    ]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "hf:ARCH"),
        ("lama", "did you mean 'llama'"),
        ("causal/vit", "vit is not of the family 'causal'; write hf:encoder/vit"),
        ("seq2seq/brat", "did you mean 'bart'"),
        ("caus/bert", "'caus' is no family .* write hf:causal/bert or hf:encoder/bert"),
        ("folder", "transformers has no 'folder', and there is no such folder"),
    ],
)
def test_what_is_no_model_is_answered_with_one(target: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pick(target)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "encoder"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "encoder"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "causal"),
        ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, "encoder"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "seq2seq"),
        ({"model_type": "gpt2"}, "causal"),
    ],
)
def test_a_folder_is_of_the_family_of_the_class_that_was_saved(
    config: dict[str, object], family: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert pick(str(tmp_path)) == (family, str(tmp_path))
    assert pick(f"causal/{tmp_path}") == ("causal", str(tmp_path))


def test_a_folder_may_be_below_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saved").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pick("~/saved") == ("causal", str(tmp_path / "saved"))


def test_a_folder_by_itself_is_a_saved_model_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("llama", "run/checkpoints", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("llama", "run"):
        (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
    assert with_folder("llama") == "hf:./llama", "not the architecture of that name"
    assert pick("./llama")[1] == "./llama"
    assert with_folder(str(tmp_path / "llama")) == f"hf:{tmp_path / 'llama'}"
    for other in ("hf:llama", "run", "empty", "mine.py:Llama", "nothing", "x" * 300, ""):
        assert with_folder(other) == other


def test_globs_are_over_families_and_names() -> None:
    assert matching("t5") == []
    assert matching("*/t5") == [*matching("t5*")[:1], "encoder/t5"]
    assert set(matching("all")) == {
        f"{family}/{name}"
        for family in ("causal", "seq2seq", "encoder")
        for name in classes(family)
    }
    found = matching("encoder/*bert*")
    assert "encoder/bert" in found and "encoder/roberta" in found
    assert all(one.startswith("encoder/") and "bert" in one for one in found)


def test_language_models_are_no_encoders_unless_they_fill_in_words() -> None:
    encoders = classes("encoder")
    assert not {"llama", "llava", "whisper", "gpt2", "voxtral"} & encoders.keys()
    assert {"bert", "roberta", "vit", "t5", "clip_text_model"} <= encoders.keys()
