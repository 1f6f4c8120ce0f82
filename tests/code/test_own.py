"""Settings of own code: read without running it, written, and given what it asks for."""

import pickle

import pytest

from attnlab import config, registry
from attnlab.code import consent
from attnlab.code.own import allow_named, own_parts, refuse_other_code
from attnlab.models.transformer import TransformerSettings

CODE = """
from dataclasses import dataclass
from torch import nn

class Asks(nn.Module):
    def __init__(self, n_embd, num_heads, slope=1.0, kind="a", on=False, wanted=None):
        super().__init__()
        self.got = (n_embd, num_heads, slope, kind, on, wanted)
    def forward(self, x):
        return x

class Needs(Asks):
    def __init__(self, width, alpha, beta):
        super().__init__(width, alpha)

class Reads(Asks):
    def __init__(self, config):
        super().__init__(config.d_model, config.n_head, config.slope)

class ReadsDict(Asks):
    def __init__(self, cfg: dict):
        super().__init__(cfg["dim"], cfg["heads"])

@dataclass
class Args:
    dim: int
    n_heads: int
    slope: float = 1.0

class ReadsArgs(Asks):
    def __init__(self, args: Args):
        super().__init__(args.dim, args.n_heads, args.slope)

class Typed(nn.Module):
    def __init__(self, rank: int = 2, decay: float | None = None, on: bool = False, rest: str = ""):
        super().__init__()

class Breaks(nn.Module):
    def __init__(self):
        raise KeyError("no")

def factory(d_model, nhead, slope=1.0):
    return Asks(d_model, nhead, slope)

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def own(*words):
    none = registry.load("positions", "none")()
    settings = config.override(TransformerSettings(positions=none), words)
    allow_named(settings, words)
    return settings


def made(*words):
    return own(*words).build().blocks[1].attention.inner.inner


def test_it_is_given_what_it_asks_for_under_the_names_people_have(mine):
    words = ["attention=mine.py:Asks", "attention.heads=8", "width=96", "attention.slope=0.5"]
    assert made(*words, "attention.kind=b,c", "attention.on=true", "attention.wanted=none").got == (
        *(96, 8, 0.5, "b,c", True, None),
    )


@pytest.mark.parametrize("name", ["Reads", "ReadsArgs", "factory"])
def test_config_objects_and_factories_are_given_the_same(mine, name):
    words = [f"attention=mine.py:{name}", "width=96", "attention.slope=0.25"]
    assert made(*words).got[:3] == (96, 4, 0.25)
    assert made("attention=mine.py:ReadsDict", "width=96").got[:2] == (96, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention=mine.py:Asks", "attention.slop=1"], "takes no 'slop'; did you mean 'slope'"),
        (["attention=mine.py:Needs"], "needs alpha, beta; write model.attention.alpha=… model.att"),
        (["attention=mine.py:Reads"], "reads config.slope; write model.attention.slope=…"),
        (["attention=mine.py:Breaks"], "mine.py:Breaks cannot be made: KeyError: 'no'"),
        (["attention=mine.py:Aks"], "mine.py has no Aks; did you mean 'Asks'"),
        (["attention=mine.py:NUMBER"], "cannot be called; name a class or a function"),
        (["attention=mine.py:Typed", "attention.rank=zz"], "is 'zz'; mine.py:Typed takes a whole"),
        (["attention=mine.py:Typed", "attention.rank=2.5"], "rank is 2.5; mine.py:Typed takes a"),
        (["attention=mine.py:Typed", "attention.decay=fast"], "mine.py:Typed takes a number there"),
        (["attention=mine.py:Typed", "attention.on=1"], "mine.py:Typed takes true or false there"),
        (["attention=mine.py:Asks", "attention.slope=zz"], "slope is 'zz'; mine.py:Asks takes a n"),
        (["attention=gone.py:Asks"], "gone.py is no file"),
        (["attention=mine.py:"], "names no code; write file.py:Name"),
        (["norm=mine.py:Asks"], "norm is 'mine.py:Asks'"),
    ],
)
def test_what_cannot_be_made_is_said(mine, words, message):
    with pytest.raises(ValueError, match=r"(?s).") as refused:
        own(*words).build()
    assert message in str(refused.value)


def test_numbers_that_fit_are_taken(mine):
    own("attention=mine.py:Typed", "attention.rank=3", "attention.decay=none").build()
    own("attention=mine.py:Typed", "attention.decay=2", "attention.on=true").build()
    own("attention=mine.py:Asks", "attention.slope=2", "attention.wanted=any").build()


def test_settings_are_written_and_read_again(mine):
    words = [
        "attention=mine.py:Asks",
        "attention.slope=0.5",
        "attention.on=true",
        "attention.heads=2",
    ]
    settings = own(*words)
    plain = config.to_dict(settings)
    kept = plain["attention"]
    assert (kept["name"], kept["slope"], kept["on"], kept["heads"]) == (
        "mine.py:Asks",
        0.5,
        True,
        2,
    )
    assert config.from_dict(TransformerSettings, plain) == settings
    assert config.override(TransformerSettings(), config.to_overrides(plain)) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_to_read_settings_runs_no_code(mine):
    plain = config.to_dict(own("attention=mine.py:Asks"))
    mine.write_text("raise SystemExit('run')\n")
    read = config.from_dict(TransformerSettings, plain)
    mine.unlink()
    assert config.to_dict(config.from_dict(TransformerSettings, plain)) == plain
    assert [one.code for one in own_parts(read)] == ["mine.py:Asks"]


def test_other_code_is_refused(mine):
    before = own("attention=mine.py:Asks")
    mine.write_text(CODE + "# changed\n")
    with pytest.raises(ValueError, match=r"mine.py:Asks has changed since this model was made"):
        before.build()
    with pytest.raises(ValueError, match=r"restore it \(the run has a copy.* or start a new run"):
        refuse_other_code(before, own("attention=mine.py:Asks"))
    own("attention=mine.py:Asks").build()
    refuse_other_code(before, before)


@pytest.mark.parametrize("changed", ["mine.py", "helper.py"])
def test_edited_code_is_run_as_it_is_now_in_the_same_process(mine, changed):
    helper = mine.with_name("helper.py")
    for number in (1, 22):
        said = {"mine.py": 0, "helper.py": 0} | {changed: number}
        helper.write_text(f"NUMBER = {said['helper.py']}\n")
        code = CODE.replace("class Asks", f"import helper\nOWN = {said['mine.py']}\nclass Asks")
        mine.write_text(code.replace("self.got =", "self.number = helper.NUMBER + OWN; self.got ="))
        assert made("attention=mine.py:Asks").number == number


def test_names_of_ours_cannot_be_taken(mine):
    with pytest.raises(ValueError, match=r"attention\.name cannot be set"):
        own("attention=mine.py:Asks", "attention.name=x")
    settings = own("attention=mine.py:Asks", "attention.given=3")
    assert config.from_dict(TransformerSettings, config.to_dict(settings)) == settings


def test_settings_of_a_file_have_a_record_of_the_code(mine):
    plain = config.to_dict(own("attention=mine.py:Asks"))
    del plain["attention"]["source"]
    with pytest.raises(ValueError, match=r"attention\.source is missing"):
        config.from_dict(TransformerSettings, plain)


def test_only_some_kinds_can_be_own_code():
    with pytest.raises(
        ValueError, match="code of your own can be attention, score, positions, mod"
    ):
        registry.load("optimiser", "mine.py:Asks")


def test_other_settings_take_no_names_they_do_not_have():
    with pytest.raises(ValueError, match="no such setting"):
        own("attention.slope=1")


def test_where_the_code_is_not_one_reads_that_the_run_has_a_copy(mine, tmp_path, monkeypatch):
    settings = own("attention=mine.py:Asks")
    monkeypatch.chdir(tmp_path / "named")
    with pytest.raises(ValueError, match=r"mine.py is no file.* copy .* folder code/"):
        settings.build()
