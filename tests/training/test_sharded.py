"""Several processes with shards of the weights: the same losses for any number of them, no process
ever with all weights, and a lost or failing process that is named."""

import json

import numpy as np
import pytest
import torch
from training.processes import OWN_CODE, started
from training.recipes import begin, small

from attnlab.code import consent
from attnlab.training import checkpoint, runs, shard_files
from attnlab.training.parallel import World, cut_for
from attnlab.training.saved import open_saved

# 128: large enough that weights are made in rows
WORDS = ["model.dropout=0", "model.width=128", "model.depth=1", "parallel=fsdp", "save_every=4"]
WORDS += ["schedule.shape=constant", "average=0.9", "evaluate_every=4", "keep=9"]
ADAMW = [*WORDS, "optimiser=adamw"]
# Sums of gradients in float32 in another order; AdamW does not make them grow in so few steps.
ROUNDING = 1e-6
# Muon's update is a polynomial of degree 3⁵ of the gradient, which enlarges their difference.
ROUNDING_OF_MUON = 2e-4
QUIET = ""

JOBS = [
    (4, "mixed", "no gathering", *ADAMW, "steps=4"),
    (2, "mixed", "no gathering", *ADAMW, "steps=8"),
    (1, "mixed", QUIET, *ADAMW, "steps=12"),
    (4, "mixed", "no gathering", *ADAMW, "steps=16", "replicas=2"),
    (4, "muon", QUIET, *WORDS, "steps=4"),
    (2, "muon", QUIET, *WORDS, "steps=8"),
    (2, "plain", QUIET, *WORDS, "model.dropout=0.1", "steps=8", "sample_every=4"),
    (2, "stopped", QUIET, *WORDS, "model.dropout=0.1", "steps=4", "sample_every=4"),
    (2, "stopped", QUIET, *WORDS, "model.dropout=0.1", "steps=8", "sample_every=4"),
    (2, "recomputed", QUIET, *WORDS, "model.dropout=0.1", "steps=4", "recompute=true"),
    (2, "vocabulary", "large vocabulary", *ADAMW, "steps=4", "recompute=true"),
    (2, "start", "no whole start", *ADAMW, "steps=4", "start=mixed/checkpoints/step_000016"),
    (2, "plain start", "no whole start", *ADAMW, "steps=4", "start=mixed/checkpoints/step_000012"),
    (2, "own", "own code", *ADAMW, "steps=4", f"model.attention={OWN_CODE}"),
    (2, "beside", "beside", *WORDS, "model.dropout=0.1", "steps=8", "sample_every=4"),
    (2, "short", "short of memory", *WORDS, "model.dropout=0.1", "steps=4", "sample_every=4"),
    (2, "moved", "moved", *ADAMW, "steps=8"),
    (2, "full", "full disk", *ADAMW, "steps=8"),
    (2, "gone", "gone", *ADAMW, "steps=400"),
    (2, "hanging", "hanging", *ADAMW, "steps=400", "timeout=3"),
    (2, "wrong", "wrong", *ADAMW, "steps=400"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All of them in one go: importing torch takes longer than such a training."""
    folder = tmp_path_factory.mktemp("runs")
    ended = {}
    for job, said in zip(JOBS, started(JOBS, folder), strict=True):
        ended.setdefault(job[1], []).append(said)
    return folder, ended


def run_of(trained, name):
    folder, ended = trained
    assert not any(said for job in ended[name] for said in job), ended[name]
    return runs.Run(folder / name)


def losses(run, log="metrics"):
    return [row["loss"] for row in run.read(log)]


def test_four_processes_then_two_then_one_then_two_copies_train_as_one_process(trained, tmp_path):
    run, (whole, _) = run_of(trained, "mixed"), begin(tmp_path, small(*ADAMW, "steps=16"))
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING)
    np.testing.assert_allclose(losses(run, "eval"), losses(whole, "eval"), rtol=ROUNDING)
    one, other = (checkpoint.load(checkpoint.all_in(r.checkpoints)[0]) for r in (whole, run))
    for kind in ("model", "optimiser"):
        mine, theirs = getattr(one, kind), getattr(other, kind)
        assert mine.keys() == theirs.keys()
        assert any(name.endswith("/average") for name in one.optimiser)
        for name, tensor in mine.items():
            # where a gradient is near 0, its rounding decides an update of AdamW: rate · ±1
            np.testing.assert_allclose(theirs[name], tensor, atol=1e-4)
            assert float((theirs[name] - tensor).abs().mean()) < 1e-7


def test_each_process_writes_a_shard_and_one_alone_a_plain_checkpoint(trained):
    run = run_of(trained, "mixed")
    written = {
        one.name: shard_files.names(p.name for p in one.iterdir())
        for one in run.checkpoints.iterdir()
    }
    assert {name: len(one) for name, one in written.items()} == {
        "step_000004": 8,
        "step_000008": 4,
        "step_000012": 0,
        "step_000016": 4,  # two copies of the weights, and the first is written
    }
    sizes = [one.stat().st_size for one in (run.checkpoints / "step_000004").glob("model-*")]
    assert max(sizes) < 1.2 * min(sizes)


def test_muon_and_its_momentum_resume_with_fewer_processes(trained, tmp_path):
    run, (whole, _) = run_of(trained, "muon"), begin(tmp_path, small(*WORDS, "steps=8"))
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING_OF_MUON)
    first = [losses(run)[4], losses(whole)[4]]
    np.testing.assert_allclose(*first, rtol=1e-5)


def test_as_many_processes_resume_to_the_same_bits(trained):
    plain, stopped = run_of(trained, "plain"), run_of(trained, "stopped")
    for log in ("metrics", "eval", "samples"):
        assert plain.log(log).read_bytes() == stopped.log(log).read_bytes()
    assert len(plain.read("samples")) == 2
    for path in sorted((plain.checkpoints / "step_000008").glob("*.safetensors")):
        assert (stopped.checkpoints / "step_000008" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("name", "steps"), [("beside", (4, 8)), ("short", (4,))])
def test_shards_written_beside_the_steps_or_not_are_the_same(trained, name, steps):
    plain, other = run_of(trained, "plain"), run_of(trained, name)
    for step in map(checkpoint.name_of, steps):
        for path in sorted((plain.checkpoints / step).glob("*.safetensors")):
            assert (other.checkpoints / step / path.name).read_bytes() == path.read_bytes()


def test_a_folder_that_is_moved_while_shards_are_written_costs_nothing(trained):
    folder, ended = trained
    assert "FolderGone" in ended["moved"][0][0] and "step 8 is saved there" in ended["moved"][0][0]
    newest, broken = checkpoint.newest_good(runs.Run(folder / "elsewhere").checkpoints)
    assert newest.name == "step_000008" and not broken and not (folder / "moved").exists()


def test_recomputed_blocks_train_the_same_model_in_shards(trained):
    run, plain = run_of(trained, "recomputed"), run_of(trained, "plain")
    assert losses(run) == losses(plain)[:4]


def test_logits_in_chunks_train_the_same_model_in_shards(trained, tmp_path):
    run, (whole, _) = run_of(trained, "vocabulary"), begin(tmp_path, small(*ADAMW, "steps=4"))
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING)


@pytest.mark.parametrize(("name", "step"), [("start", 16), ("plain start", 12)])
def test_shards_start_from_a_checkpoint_as_one_process_does(trained, tmp_path, name, step):
    place = run_of(trained, "mixed").checkpoints / checkpoint.name_of(step)
    run = run_of(trained, name)
    whole, _ = begin(tmp_path, small(*ADAMW, "steps=4", f"start={place}"))
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING)
    assert run.manifest()["start"] == whole.manifest()["start"]


def test_operations_of_code_of_ones_own_are_counted_although_its_weights_are_cut(trained, tmp_path):
    consent.allow(OWN_CODE)
    words = [*ADAMW, "steps=4", f"model.attention={OWN_CODE}"]
    run, (whole, _) = run_of(trained, "own"), begin(tmp_path, small(*words))
    there, here = (json.loads((r.folder / "manifest.json").read_bytes()) for r in (run, whole))
    assert there["flops"] == here["flops"]
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING)


def test_a_checkpoint_in_shards_is_used_like_any_other(trained):
    run = run_of(trained, "mixed")
    newest = run.checkpoints / "step_000016"
    saved = open_saved(str(newest), run.folder.parent, "cpu")
    kept = checkpoint.load(newest)
    for name, weight in saved.model.named_parameters():
        assert torch.equal(weight, kept.optimiser[f"{name}/average"]), "the average is what is used"
    assert checkpoint.load(newest, "average").optimiser.keys() == {
        name for name in kept.optimiser if name.endswith("/average")
    }


def test_a_full_disk_on_one_process_is_said_by_all_and_the_old_checkpoint_stays(trained):
    folder, ended = trained
    run = runs.Run(folder / "full")
    for said in ended["full"][0]:
        assert "no checkpoint could be written to" in said and "free some space" in said
    assert [one.name for one in run.checkpoints.iterdir()] == ["step_000004"]
    assert checkpoint.is_good(run.checkpoints / "step_000004")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "Lost: process 1 of 2 is gone: last heard of at step "),
        ("hanging", "Lost: process 1 of 2 is gone: last heard of at step "),
        ("wrong", "Lost: process 1 of 2 has stopped: ValueError: the text ends here"),
    ],
)
def test_a_process_that_is_missing_is_named(trained, name, message):
    folder, ended = trained
    said = ended[name][0]
    assert message in said[0] and "--resume" in said[0]
    newest, broken = checkpoint.newest_good(runs.Run(folder / name).checkpoints)
    assert checkpoint.step_of(newest) >= 4 and not broken


def test_copies_that_do_not_divide_the_processes_are_refused():
    recipe = small("parallel=fsdp", "replicas=3")
    with pytest.raises(ValueError, match="replicas is 3, which does not divide 4 processes"):
        cut_for(recipe, World(0, 4, torch.device("cpu")))
