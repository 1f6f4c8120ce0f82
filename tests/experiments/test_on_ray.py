"""The same comparison on a Ray cluster: a lost worker changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from compare.comparisons import FOUR, small_words, timeless
from experiments.small import InProcess

from attnlab import json_files
from attnlab.compare.comparison import Comparison
from attnlab.compare.parse import parse
from attnlab.experiments import on_ray
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.training.runs import Run

pytest.importorskip("ray")


def kill_a_worker(root, started):
    """The process of a training that is under way, as its run folder names it."""
    until = time.monotonic() + 100
    while time.monotonic() < until and started.poll() is None:
        for path in root.glob("compare-*/runs/*/manifest.json"):
            run = Run(path.parent)
            if not run.finished and len(run.read("metrics")) > 120:
                os.kill(json_files.read_json(path)["pid"], signal.SIGKILL)
                return run
        time.sleep(0.01)
    raise AssertionError("no training was seen")


def test_a_lost_worker_is_survived_and_the_result_is_that_of_local_processes(tmp_path):
    """Over the command line, with a cluster of its own of two workers."""
    more = ["steps=300", "evaluations=3", "seeds=1", "match=steps"]
    words = small_words(tmp_path, *FOUR[:2], *more)
    command = [sys.executable, "-m", "attnlab", "compare", *words, "--json"]
    command += ["--on", "ray", "--address", "local", "--processes", "2"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    lost = kill_a_worker(tmp_path / "runs", started)
    out, err = started.communicate(timeout=150)
    assert started.returncode == 0, err.decode()
    assert lost.finished
    assert b"ray" not in err.lower().replace(b"--on ray", b"")  # it is quiet
    comparison = Comparison(parse(words), InProcess())
    local = carry_out("", comparison, root=tmp_path / "local", progress=Progress())
    assert timeless(json.loads(out)) == timeless(local.results)


SURROUNDINGS = """
import os
from pathlib import Path
from attnlab.experiments import on_ray, worker
from attnlab.experiments.pool import Task
from attnlab.training.recipe import Recipe

def looked(task):
    return {"ending": os.environ.get("GOMP_SPINCOUNT")}

worker.train = looked
task = Task(name="one", folder=Path("nowhere"), recipe=Recipe())
with on_ray.connected("local", 1) as ray:
    os.environ.update(given)
    print(on_ray._train(ray, [task], lambda steps, words: None)["one"]["ending"])
"""


@pytest.mark.parametrize(("given", "seen"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_workers_of_a_cluster_that_was_there_before_us_do_not_wait_busily(tmp_path, given, seen):
    """A cluster whose workers have none of our surroundings, as `ray start` makes one."""
    bare = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", f"given = {given}\n{SURROUNDINGS}"]
    done = subprocess.run(command, env=bare, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == seen, done.stderr


def test_without_the_package_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'attnlab\[ray\]'"):
        on_ray.RayPool()


class Elsewhere:
    """A cluster of two machines: one is gone, the other sees none of our files."""

    def nodes(self):
        gone = {"Alive": False, "NodeID": "cd" * 28, "NodeManagerHostname": "gone"}
        return [gone, {"Alive": True, "NodeID": "ab" * 28, "NodeManagerHostname": "far"}]

    def remote(self, *words, **options):
        """A task's options, or its call."""
        return (lambda function: self) if options else ""

    def options(self, **options):
        return self

    def get(self, answer):
        return answer


def test_a_folder_that_a_machine_cannot_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"far cannot read .* all machines of the cluster share"):
        on_ray.refuse_unshared(Elsewhere(), tmp_path)
    assert not list(tmp_path.iterdir())
