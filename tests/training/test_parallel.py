"""Several processes: the same samples in the same order, the same losses up to rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from training.recipes import begin, go_on, small

from attnlab.data.batches import batch_of
from attnlab.training import checkpoint, parallel, runs
from attnlab.training.setup import prepare

TESTS = Path(__file__).parent.parent

SCRIPT = """
import json, sys
from pathlib import Path
from training.recipes import small
from attnlab import config, files
from attnlab.training import checkpoint, parallel, runs, sharded
from attnlab.training.loop import train
from attnlab.training.report import Report
from attnlab.training.setup import prepare

run, words = runs.Run(Path(sys.argv[1])), sys.argv[2:]
recipe = small(*words)
with parallel.world("cpu") as world:
    begin = sharded.newest_good(world, run.checkpoints)[0]
    setup = prepare(recipe, run.folder.parent, begin, world=world)
    train(setup, run, world, Report(), begin)
"""
# Sums of gradients in float32 in another order; over a few steps nothing grows past this.
ROUNDING = 2e-4


def with_processes(count, run, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", "--no-python", sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(run.folder), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def losses(run):
    return [row["loss"] for row in run.read("metrics")]


def test_the_samples_of_a_step_do_not_depend_on_the_number_of_processes(tmp_path):
    source = prepare(small(), tmp_path).source
    for step in range(5):
        whole = batch_of(source, seed=0, step=step, size=4)
        shares = [
            batch_of(source, seed=0, step=step, size=4, rank=rank, world=2, part=part, parts=2)
            for rank in range(2)
            for part in range(2)
        ]
        assert [row for share in shares for row in share.tokens.tolist()] == whole.tokens.tolist()


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_one_process_then_two_then_one_train_the_same_model(tmp_path, way, optimiser):
    words = ["model.dropout=0", f"optimiser={optimiser}", f"parallel={way}", "accumulate=2"]
    words += ["save_every=4", "sample_every=8", "sample_tokens=5", "schedule.shape=constant"]
    words += ["average=0.9"]
    whole, _ = begin(tmp_path, small(*words))
    run, _ = begin(tmp_path, small(*words, "steps=4"))
    with_processes(2, run, *words, "steps=8")
    go_on(run, small(*words), checkpoint.newest_good(run.checkpoints)[0])
    np.testing.assert_allclose(losses(run), losses(whole), rtol=ROUNDING)
    one, other = (checkpoint.load(checkpoint.all_in(r.checkpoints)[0]) for r in (whole, run))
    for name, weight in one.model.items():
        np.testing.assert_allclose(other.model[name], weight, atol=ROUNDING, rtol=ROUNDING)
    assert len(run.read("samples")) == 1
    assert json.loads((run.folder / "manifest.json").read_text())["processes"] == 1


def test_every_process_has_dropout_of_its_own_and_the_run_is_repeatable(tmp_path):
    first, second = runs.create(tmp_path, "first"), runs.create(tmp_path, "second")
    for run in (first, second):
        with_processes(2, run, "model.dropout=0.5", "steps=3", "batch=8")
    assert first.log("metrics").read_bytes() == second.log("metrics").read_bytes()
    alone, _ = begin(tmp_path, small("model.dropout=0.5", "steps=3", "batch=8"))
    assert losses(alone) != losses(first), "another world size, other dropout masks"


def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path):
    source = prepare(small(), tmp_path).source
    with pytest.raises(ValueError, match="multiple of 3"):
        batch_of(source, seed=0, step=0, size=4, rank=0, world=3)


def test_weights_are_sent_in_half_precision_where_products_are_and_gradients_never():
    device = torch.device("cuda", 0)
    policy = parallel.precision(small("dtype=bfloat16"), device)
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    for recipe, where in (("dtype=float32", device), ("dtype=bfloat16", torch.device("cpu"))):
        policy = parallel.precision(small(recipe), where)
        assert policy.param_dtype is policy.reduce_dtype is None
