"""The registry: found by name, loaded late, open to other packages."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab import config, registry


@pytest.mark.parametrize(
    "option",
    # presets are functions; tests/test_presets.py runs over them
    [o for kind in registry.kinds() if kind != "preset" for o in registry.options(kind)],
    ids=str,
)
def test_every_line_names_a_frozen_settings_class_with_defaults(option):
    settings = registry.load(option.kind, option.name)()
    assert dataclasses.is_dataclass(settings)
    assert type(settings).__dataclass_params__.frozen
    assert registry.name_of(option.kind, settings) == option.name


def test_names_take_underscores():
    assert registry.find("attention", "multi_head").name == "multi-head"


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="unknown score 'aditive'; did you mean 'additive'"):
        registry.load("score", "aditive")
    with pytest.raises(ValueError, match="unknown kind 'scores'; did you mean 'score'"):
        registry.options("scores")


def test_an_option_of_ones_own_can_be_added(monkeypatch):
    monkeypatch.setattr(registry, "_OPTIONS", list(registry._OPTIONS))
    mine = registry.Option("positions", "mine", "attnlab.attention.positions:Rotary", "a test")
    registry.register(mine)
    assert registry.find("positions", "mine") is mine
    with pytest.raises(ValueError, match="registered already"):
        registry.register(mine)


def test_settings_that_are_not_registered_have_no_name():
    with pytest.raises(ValueError, match="is not registered as a score"):
        registry.name_of("score", object())


SPIRAL = """
from attnlab.attention.positions import NoPositions
from attnlab.config import setting, settings

@settings
class Spiral(NoPositions):
    turns: int = setting(3, low=1, about="turns of the spiral")
"""


def install(place, package, options, **modules):
    """A package as pip leaves it: its modules, and metadata with an entry point."""
    (place / package).mkdir(parents=True)
    sources = {"__init__": "", "options": options, **modules}
    for name, source in sources.items():
        (place / package / f"{name}.py").write_text(source)
    info = place / f"{package}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        f"[attnlab.options]\n{package} = {package}.options:OPTIONS\n"
    )


def options_of(*rows):
    return f"from attnlab.registry import Option\nOPTIONS = [Option(*row) for row in {rows!r}]\n"


ROW = ("positions", "spiral", "{}.schemes:Spiral", "along a spiral")


def row(package, **changes):
    given = dict(zip(("kind", "name", "target", "summary"), ROW, strict=True)) | changes
    return tuple(value.format(package) for value in given.values())


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of installed packages; what was found before is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._foreign.cache_clear()
    yield tmp_path
    registry._foreign.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0].startswith("foreign_")]:
        del sys.modules[name]


def test_another_package_adds_options(packages):
    install(packages, "foreign_a", options_of(row("foreign_a")), schemes=SPIRAL)
    option = registry.find("positions", "spiral")
    assert (option.summary, option.origin) == ("along a spiral", "foreign_a 1.2")
    assert option in registry.options("positions")
    assert "foreign_a.schemes" not in sys.modules, "listing imports no option"

    from attnlab.models.transformer import TransformerSettings

    words = ["positions=spiral", "positions.turns=5"]
    settings = config.override(TransformerSettings(), words)
    assert settings.positions.turns == 5 and settings.build()
    plain = config.to_dict(settings)
    assert plain["positions"] == {"name": "spiral", "turns": 5}
    assert config.from_dict(TransformerSettings, plain) == settings
    with pytest.raises(ValueError, match=r"positions\.turns is 0; use 1 or more"):
        config.override(settings, ["positions.turns=0"])


def test_a_class_may_be_named_where_it_is_not_defined(packages):
    reexport = "from foreign_b.inner import Spiral"
    install(packages, "foreign_b", options_of(row("foreign_b")), schemes=reexport, inner=SPIRAL)
    made = registry.load("positions", "spiral")()
    assert registry.name_of("positions", made) == "spiral"


GATED = """
from torch import nn

class Gated(nn.Module):
    def __init__(self, width, power=2):
        super().__init__()
        self.power, self.gate = power, nn.Linear(width, width)
    def forward(self, x):
        return self.gate(x) ** self.power
"""


def test_a_package_gives_its_code_a_name_by_an_entry_point(packages):
    install(packages, "foreign_g", "OPTIONS = []\n", layers=GATED)
    info = packages / "foreign_g-1.2.dist-info/entry_points.txt"
    points = "[attnlab.attention]\ngated = foreign_g.layers:Gated\nmulti-head = foreign_g:X\n"
    info.write_text(points)
    with pytest.warns(registry.OptionWarning, match="'multi-head' of foreign_g 1.2 is left out"):
        option = registry.find("attention", "gated")
    assert (option.summary, option.origin) == ("foreign_g.layers:Gated", "foreign_g 1.2")
    assert option in registry.options("attention")
    assert "foreign_g" not in sys.modules, "listing imports nothing of it"

    from attnlab.models.transformer import TransformerSettings

    words = ["attention=gated", "attention.power=3", "positions=none", "depth=1"]
    settings = config.override(TransformerSettings(), words)
    made = settings.build().blocks[0].attention.inner.inner
    assert (type(made).__name__, made.power) == ("Gated", 3)
    plain = config.to_dict(settings)
    assert plain["attention"]["name"] == "gated" and len(plain["attention"]["source"]) == 64
    assert config.from_dict(TransformerSettings, plain) == settings
    names = [field.key for field in config.describe(settings.attention)]
    assert names == ["power", "heads", "head_width"]
    (packages / "foreign_g/layers.py").write_text(GATED + "# a newer version\n")
    with pytest.raises(ValueError, match="gated has changed since this model was made"):
        settings.build()


def test_without_other_packages_there_are_only_ours():
    assert {option.origin for kind in registry.kinds() for option in registry.options(kind)} == {
        "attnlab"
    }


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"name": "rotary"}], "positions 'rotary' is registered already, by attnlab"),
        ([{"kind": "postions"}], "unknown kind 'postions'; did you mean 'positions'"),
        ([{"name": "my spiral"}], "a name has small letters, digits and dashes"),
        ([{}, {}], "positions 'spiral' is registered already, by foreign_c 1.2"),
    ],
)
def test_an_option_that_cannot_be_added_is_a_warning_and_ours_stay(packages, rows, fault):
    ours = registry._OPTIONS
    given = [row("foreign_c", **one) for one in rows] + [row("foreign_c", name="good")]
    install(packages, "foreign_c", options_of(*given), schemes=SPIRAL)
    with pytest.warns(registry.OptionWarning, match=fault) as caught:
        found = registry.options("positions")
    assert len(caught) == 1 and "of foreign_c 1.2 is left out" in str(caught[0].message)
    assert [option for option in found if option.origin == "attnlab"] == [
        option for option in ours if option.kind == "positions"
    ]
    assert found[-1].name == "good"


@pytest.mark.parametrize(
    "options",
    [
        "raise RuntimeError('broken\\nin two lines')",
        "OPTIONS = [('positions', 'x')]",
        "OPTIONS = 3",
    ],
)
def test_a_broken_package_is_a_warning_of_one_line(packages, options):
    install(packages, "foreign_d", options)
    install(packages, "foreign_e", options_of(row("foreign_e")), schemes=SPIRAL)
    with pytest.warns(registry.OptionWarning, match=r"options of foreign_d 1\.2") as caught:
        found = registry.options("positions")
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert found[-1].origin == "foreign_e 1.2"
    assert registry.options("score"), "it warns once"


def test_an_option_that_cannot_be_imported_is_named_when_it_is_used(packages):
    install(packages, "foreign_f", options_of(row("foreign_f")), schemes="import no_such_module")
    assert registry.find("positions", "spiral")
    with pytest.raises(
        ValueError, match=r"positions 'spiral' of foreign_f 1\.2 cannot be imported"
    ):
        registry.load("positions", "spiral")


def test_our_own_options_are_found_without_looking_at_other_packages(packages):
    install(packages, "foreign_g", "raise RuntimeError")
    assert registry.load("positions", "rotary")().base == 10_000
    assert registry.name_of("positions", registry.load("positions", "rotary")()) == "rotary"


def test_the_command_line_shows_where_an_option_comes_from(packages):
    install(packages, "foreign_h", options_of(row("foreign_h")), schemes=SPIRAL)
    install(packages, "foreign_i", "raise RuntimeError('broken')")
    paths = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    shown = {}
    for what in ("positions", "positions.spiral"):
        done = subprocess.run(
            [sys.executable, "-m", "attnlab", "list", what],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
            check=True,
        )
        assert (
            done.stderr == "warning: options of foreign_i 1.2 are left out: RuntimeError: broken\n"
        )
        shown[what] = " ".join(done.stdout.split())
    assert "positions=spiral along a spiral (from foreign_h 1.2)" in shown["positions"]
    assert "turns 3 whole number, 1 or more turns of the spiral" in shown["positions.spiral"]


# where the options of each kind are tested, all that there are
CONTRACTS = {
    "attention": "contracts/test_attention.py",
    "score": "attention/test_scores.py",
    "cache": "contracts/test_cache.py",
    "positions": "models/test_transformer.py",
    "scaling": "attention/test_rotary_scaling.py",
    "model": "contracts/test_model.py",
    "corpus": "contracts/test_corpus.py",
    "tokenizer": "data/test_tokens.py",
    "objective": "data/test_objectives.py",
    "optimiser": "training/test_optim.py",
    "preset": "test_presets.py",
    "study": "contracts/test_study.py",
    "claim": "theory/test_catalogue.py",
    "property": "contracts/test_property.py",
    "protocol": "audit/subject/test_protocols.py",
    "cause": "doctor/test_causes.py",
    "check": "contracts/test_command.py",
    "bench": "contracts/test_command.py",
}


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_kind_has_tests_over_all_its_options(kind):
    source = (Path(__file__).parent / CONTRACTS[kind]).read_text()
    assert "registry.options(" in source and f'"{kind}"' in source


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("tyni", ["tiny", "large"], "did you mean 'tiny'?"),
        ("rope", ["none", "rotary"], "did you mean 'rotary'?"),
        ("rope", ["copy", "rope-relative"], "did you mean 'rope-relative'?"),
        ("model.layers", ["model.bias", "model.depth"], "did you mean 'model.depth'?"),
        ("leed", ["seed", "lead"], "did you mean 'lead'?"),  # few get the first letter wrong
        ("sead", ["seed", "send", "lead"], "did you mean 'seed' or 'send'?"),
        ("tinny", ["shakespeare-cpu", "tiny"], "did you mean 'tiny'?"),
        ("halves", ["interleaved", "half-split"], "did you mean 'half-split'?"),
        ("xyz", ["tiny", "large"], "choose from tiny, large"),
    ],
)
def test_the_nearest_names_are_suggested_and_none_that_is_far(wrong, right, said):
    assert registry.suggest(wrong, right) == said


def test_a_name_inside_is_suggested_to_whoever_writes_its_last_part():
    assert registry.suggest("lr", ["batch"], ["optimiser.rate"]) == "did you mean 'optimiser.rate'?"
    assert registry.suggest("xyz", ["batch"], ["optimiser.rate"]) == "choose from batch"
