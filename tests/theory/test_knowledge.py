"""The claims that train, in little; with real sizes they run in test_settle.py."""

import pytest

from attnlab.studies.birthplaces import experiment
from attnlab.studies.birthplaces.experiment import Size
from attnlab.studies.progress import Progress
from attnlab.theory.knowledge import PretrainingCarriesFacts


@pytest.fixture
def micro(monkeypatch):
    size = Size(people=14, steps=4, wordings=2, width=16, batch=4)
    monkeypatch.setitem(experiment.SIZES, "tiny", size)


def test_the_trainings_are_kept_and_the_knob_uses_the_same(micro, tmp_path):
    claim = PretrainingCarriesFacts(seeds=2, runs=tmp_path, seed=3)
    claim.prepare(Progress())
    kept = sorted(tmp_path.glob("study-*/runs/*"))
    assert len(kept) == 6 and all("seed-3" in path.name or "seed-4" in path.name for path in kept)
    claim.turned().prepare(Progress())
    assert sorted(tmp_path.glob("study-*/runs/*")) == kept
    found = claim.run()
    assert found.trials == 4 and found.kind == "trained"
    assert len(found.picture.series) == 3
    assert found.verdict == "refuted"  # four steps teach nothing: the same code has to say so


def test_one_seed_cannot_show_that_pretraining_helps():
    with pytest.raises(ValueError, match="seeds is 1; it goes from 2 to 50"):
        PretrainingCarriesFacts(seeds=1)
