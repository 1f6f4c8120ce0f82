"""Trainings in several processes: forked from one that has imported everything, so each is short.

    started(jobs, folder)   a job: number of processes, name of a run, accident, words of its recipe

What each process ended with is in the file `<job>-<rank>.json` of the folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
OWN_CODE = f"{TESTS.parent / 'examples' / 'mine.py'}:Mine"
SCRIPT = "from training.processes import main; main()"


def started(jobs, folder):
    """What every process of every job ended with: an error in words, or empty."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(jobs)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        [json.loads(one.read_text()) for one in sorted(folder.glob(f"{job}-*.json"))]
        for job in range(len(jobs))
    ]


def main():
    """In a process that has used no thread yet, since a fork would inherit it broken."""
    import torch.distributed.fsdp

    from attnlab.checks.kill import free_address

    folder, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
    for job, (count, name, accident, *words) in enumerate(jobs):
        address, children = free_address(), []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                place = {"RANK": str(rank), "WORLD_SIZE": str(count), **address}
                os.environ.update(place if count > 1 else {})
                torch.set_num_threads(1)
                said = _train(folder / name, accident, rank, words)
                (folder / f"{job}-{rank}.json").write_text(json.dumps(said))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


def _train(place, accident, rank, words):
    from training.recipes import small

    from attnlab import config, files, json_files
    from attnlab.training import parallel, runs, sharded
    from attnlab.training.loop import train
    from attnlab.training.report import Report
    from attnlab.training.setup import prepare

    run, recipe = runs.Run(place), small(*words)
    files.make_folder(run.checkpoints)
    ACCIDENTS.get(accident, lambda rank: None)(rank)
    try:
        with parallel.world("cpu", recipe.timeout) as world:
            begin = sharded.newest_good(world, run.checkpoints)[0]
            setup = prepare(recipe, run.folder.parent, begin, world=world)
            if world.first:
                written = json_files.as_json(config.to_dict(setup.recipe))
                files.write_whole(run.folder / "config.json", written)
            train(setup, run, world, Report(), begin)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _refuse_to_gather(rank):
    """No tensor of more than one number is ever put together."""
    from torch.distributed.tensor import DTensor

    plain = DTensor.full_tensor

    def gather(self, **options):
        assert self.numel() == 1, "a whole tensor on one process"
        return plain(self, **options)

    DTensor.full_tensor = gather


def _full_disk(rank):
    """Of the last process, once a checkpoint is there."""
    from attnlab import files

    plain = files.write_new

    def write_new(path, content):
        if rank == 1 and "step_000004" not in str(path):
            raise OSError(28, "No space left on device")
        plain(path, content)

    files.write_new = write_new


def _once_saved(act):
    """After a checkpoint, which is written beside the steps."""
    from attnlab.training.loop import Training

    plain = Training._batch

    def batch(self, number):
        if number > 5 and (self.run.checkpoints / "step_000004").exists():
            act()
        return plain(self, number)

    Training._batch = batch


def _beside(rank):
    """Shards of step 4 are written when the last process has taken step 6."""
    import threading

    from attnlab.training import sharded
    from attnlab.training.loop import Training

    there, plain, batch = threading.Event(), sharded.write_shard, Training._batch

    def write_shard(temporary, *more):
        if rank == 1 and "step_000004" in str(temporary):
            assert there.wait(60), "the training waits for its checkpoint"
        return plain(temporary, *more)

    def noted(self, number):
        if number == 6:
            there.set()
        return batch(self, number)

    sharded.write_shard, Training._batch = write_shard, noted


def _short_of_memory(rank):
    """The last process: then none writes in a thread."""
    import threading

    from attnlab.training import sharded, writer

    plain = sharded.write_shard

    def write_shard(*given):
        assert threading.current_thread() is threading.main_thread()
        return plain(*given)

    sharded.write_shard = write_shard
    if rank == 1:
        writer.free_memory = lambda: 0


def _moved(rank):
    """By somebody, while the last checkpoint is written."""
    from attnlab.training import sharded

    plain = sharded.finish

    def finish(temporary, folder, step, *more):
        run = folder.parent.parent
        if step == 8 and run.name == "moved":
            run.rename(run.with_name("elsewhere"))
        return plain(temporary, folder, step, *more)

    sharded.finish = finish


def _gone(rank):
    if rank == 1:
        _once_saved(lambda: os._exit(9))


def _hanging(rank):
    """It neither ends nor goes on: its own time stands still."""
    import threading

    from attnlab.training import heartbeat

    def hang():
        heartbeat.PAUSE = 1e9
        threading.Event().wait(7)
        os._exit(0)

    if rank == 1:
        _once_saved(hang)


def _wrong(rank):
    def fail():
        raise ValueError("the text ends here")

    if rank == 1:
        _once_saved(fail)


def _large(rank):
    """Every vocabulary is, and a chunk of its logits has a few rows."""
    from attnlab.models import loss

    loss.LARGE["cpu"], loss.CHUNK["cpu"] = 0, 4 * 50 * 7


def _no_whole_start(rank):
    """Nobody reads a checkpoint as a whole."""
    from attnlab.training import checkpoint

    checkpoint.load = None


def _named(rank):
    """Code of a person's own may be run."""
    from attnlab.code import consent

    consent.allow(OWN_CODE)


ACCIDENTS = {
    "large vocabulary": _large,
    "no whole start": _no_whole_start,
    "own code": _named,
    "no gathering": _refuse_to_gather,
    "full disk": _full_disk,
    "beside": _beside,
    "short of memory": _short_of_memory,
    "moved": _moved,
    "gone": _gone,
    "hanging": _hanging,
    "wrong": _wrong,
}
