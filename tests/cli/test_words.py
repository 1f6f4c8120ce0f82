"""The words of a command: key=value and --key value are the same, in every verb."""

import pytest
import typer

from attnlab import cli
from attnlab.cli.words import Verb, alike

VERBS = typer.main.get_command(cli.app).commands
# a verb, its first argument, and a setting or option of it without dashes
ALIKE = {
    "train": ("tiny", "steps=5"),
    "evaluate": ("tiny", "data=x.txt"),
    "generate": ("tiny", "tokens=5"),
    "runs": ("", "runs=here"),
    "list": ("positions", ""),
    "bench": ("window", "lengths=8"),
    "check": ("kill", "kills=2"),
    "study": ("window", "scale=tiny"),
    "prepare": ("text.jsonl", "validation=0.1"),
    "compare": ("lab", "seeds=2"),
    "claims": ("copy", "lead=3"),
    "audit": ("file.py:Name", "width=32"),
    "page": ("", "port=8000"),
    "tour": ("", "runs=here"),
    "trust": ("file.py:Name", ""),
    "export": ("tiny", "runs=here"),
    "import": ("folder", "runs=here"),
    "diff": ("hf:llama", "a.width=32"),
    "convert": ("folder", "qkv=separate"),
}


def test_every_verb_is_tried_here():
    assert set(ALIKE) == set(VERBS)


@pytest.mark.parametrize("name", [name for name, (_, word) in ALIKE.items() if word])
def test_both_forms_of_a_word_are_the_same_to_every_verb(name):
    first, word = ALIKE[name]
    verb, before = Verb.of(VERBS[name]), [first] if first else []
    key, _, value = word.partition("=")
    plain, dashed = alike([*before, word], verb), alike([*before, f"--{key}={value}"], verb)
    apart = alike([*before, f"--{key}", value], verb)
    assert plain == dashed
    assert apart in (plain, [*before, f"--{key}", value])
    assert (apart == plain) is (f"--{key}" not in verb.options)
    assert plain[len(before) :] != [] and plain[: len(before)] == before


@pytest.mark.parametrize("name", [name for name in VERBS if Verb.of(VERBS[name]).settings])
def test_a_setting_without_its_value_gets_the_right_form(name):
    verb = Verb.of(VERBS[name])
    for words in (["x", "--zzyx"], ["x", "--zzyx", "other=3"], ["x", "--zzyx", "--other", "3"]):
        with pytest.raises(ValueError, match="--zzyx has no value; write zzyx=VALUE or --zzyx VAL"):
            alike(words, verb)


@pytest.mark.parametrize("name", ["train", "evaluate", "bench", "check", "study", "audit"])
def test_what_comes_first_is_named(name):
    verb = Verb.of(VERBS[name])
    with pytest.raises(ValueError, match=f"comes first: attnlab {name} [A-Z]+ zzyx=3"):
        alike(["--zzyx", "3", "tiny"], verb)


def test_negative_numbers_are_values_and_options_are_not():
    verb = Verb.of(VERBS["train"])
    assert alike(["tiny", "--seed", "-1"], verb) == ["tiny", "seed=-1"]
    with pytest.raises(ValueError, match="has no value"):
        alike(["tiny", "--seed", "--runs", "x"], verb)
    with pytest.raises(ValueError, match="there is no option -x; see attnlab train --help"):
        alike(["tiny", "-x"], verb)


def test_the_value_of_an_option_is_never_taken_for_a_setting():
    verb = Verb.of(VERBS["generate"])
    words = ["tiny", "--prompt", "tokens=5", "--top-k", "3"]
    assert alike(words, verb) == words
    assert alike(["tiny", "--prompt", "--hello"], verb) == ["tiny", "--prompt", "--hello"]
    assert alike(["tiny", "--", "--x"], verb) == ["tiny", "--", "--x"]


def test_resume_takes_a_value_or_none():
    verb = Verb.of(VERBS["train"])
    assert alike(["tiny", "--resume", "--steps", "9"], verb) == ["tiny", "--resume", "steps=9"]
    assert alike(["tiny", "--resume", "steps=9"], verb) == ["tiny", "--resume", "steps=9"]
    assert alike(["tiny", "--resume", "auto"], verb) == ["tiny", "--resume", "auto"]
    assert alike(["tiny", "resume=auto"], verb) == ["tiny", "--resume=auto"]


def test_a_label_and_an_argument_of_audited_code_may_have_the_name_of_an_option():
    compare, audit = Verb.of(VERBS["compare"]), Verb.of(VERBS["audit"])
    words = ["on=tiny:model.window=16", "runs=elman"]
    assert alike(words, compare) == words
    assert alike(["on=ray"], compare) == ["--on=ray"]
    assert alike(["f.py:A", "device=cpu"], audit) == ["f.py:A", "device=cpu"]
    assert alike(["f.py:A", "--device", "cpu"], audit) == ["f.py:A", "--device", "cpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "tiny", "--resme", "auto"], "--resme: no such option or setting; did you mean "),
        (["train", "tiny", "--stps", "3"], "stps: no such setting; did you mean 'steps'?"),
        (["train", "tiny", "--dryrun"], "there is no option --dryrun; did you mean '--dry-run'?"),
        (["train", "tiny", "--step", "3"], "step: no such setting; did you mean 'steps'?"),
        (["train", "tiny", "--steps", "--dry-run"], "--steps has no value; write steps=VALUE or"),
        (["train", "tiny", "--compile", "--steps", "2"], "--compile has no value; write compile="),
        (["runs", "--runs"], "'--runs' requires an argument; see attnlab runs --help"),
        (["train"], "missing argument 'preset'; see attnlab train --help"),
        (["generate", "tiny", "prompt=x", "tokns=5"], "no such option; did you mean '--tokens'?"),
        (["runs", "json=true"], "json=true: --json has no value; write --json alone"),
        (["runs", "rusn=x"], "rusn=x: no such option; did you mean '--runs'?"),
        (["claims", "copy", "leed=3"], "copy: leed: no such setting; did you mean 'lead'?"),
        (["claims", "copy", "--leed", "3"], "copy: leed: no such setting; did you mean 'lead'?"),
        (["generate", "tinny", "prompt=x"], "begin one: attnlab train tiny"),
        (["evaluate", "tinny"], "'tinny' is no run and no checkpoint; there is no run of tiny in"),
    ],
)
def test_hints_fit_the_command(attnlab, words, message):
    code, _, said = attnlab(*words)
    assert code == 2 and message in said and len(said.strip().splitlines()) == 1


def test_claims_take_settings_in_both_forms(attnlab):
    plain = attnlab("claims", "copy", "--set", "lead=3", "--json")
    assert plain[0] in (0, 1)
    assert attnlab("claims", "copy", "lead=3", "--json") == plain
    assert attnlab("claims", "copy", "--lead", "3", "--json") == plain
