"""`attnlab.evaluate` and `attnlab.generate` give what the commands give."""

from pathlib import Path

import pytest

import attnlab
from attnlab.api.using import Texts

EVIL = "</pre><script>alert(1)</script>\x1b[2J"


def test_an_evaluation_has_the_numbers_of_the_command_line(training, command):
    found = attnlab.evaluate(training)
    said = command("evaluate", training.path, "--json")
    assert str(found.path) == said.pop("checkpoint") and found.numbers == said
    assert found.loss == found["loss"] == said["loss"]
    assert found.rows[0] == {"measure": "loss", "value": said["loss"]}
    assert "perplexity" in repr(found) and "perplexity" in found._repr_html_()


def test_another_text_is_named_as_on_the_command_line(training, command, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("the lazy fox. " * 40)
    found = attnlab.evaluate(training, data=str(other))
    said = command("evaluate", training.path, f"data={other}", "--json")
    assert found.loss == said["loss"] != attnlab.evaluate(training).loss


def test_texts_are_those_of_the_command_line(training, command):
    prompts = ["the ", "lazy dog"]
    found = attnlab.generate(training, prompts, tokens=7, temperature=0.9, seed=3)
    options = ["--tokens", "7", "--temperature", "0.9", "--seed", "3", "--json"]
    asked = [part for one in prompts for part in ("--prompt", one)]
    said = command("generate", training.path, *asked, *options)
    assert [{"prompt": p, "text": t} for p, t in zip(prompts, found, strict=True)] == said
    assert len(found) == 2 and str(found).startswith("the ") and found[1] == said[1]["text"]
    alone = attnlab.generate(training.path, "the ", tokens=7, temperature=0)
    assert alone.prompts == ("the ",) and len(alone.texts[0]) == 7 and alone.rounding is None
    told = attnlab.generate(training.path, "the ", tokens=7, temperature=0, exact=False)
    assert told.rounding is not None and told.rounding in told.section().text


@pytest.mark.parametrize(
    ("verb", "named", "words"),
    [
        ("generate", {"prompt": ""}, ["--prompt", ""]),
        (
            "generate",
            {"prompt": "a", "temperature": -1.0},
            ["--prompt", "a", "--temperature", "-1"],
        ),
        ("evaluate", {"steps": 3}, ["steps=3"]),
        ("evaluate", {"runs": "nowhere", "device": "cdua"}, ["--device", "cdua"]),
    ],
)
def test_an_error_is_the_line_of_the_command_line(verb, named, words, training, command):
    with pytest.raises(attnlab.Error) as raised:
        getattr(attnlab, verb)(training, **named)
    assert str(raised.value) == command(verb, training.path, *words)


def test_text_of_a_model_is_shown_as_text():
    shown = Texts(Path(EVIL), (EVIL,), (EVIL,))
    html = shown._repr_html_()
    assert "<script" not in html and "</pre><" not in html and "&lt;script&gt;" in html
    assert "\x1b" not in html + repr(shown)
    assert shown.texts == (EVIL,), "and is exact where a program reads it"
