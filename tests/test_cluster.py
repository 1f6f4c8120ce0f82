"""Work on a Ray cluster: a lost machine or worker changes nothing, and results are the same.

One cluster serves all tests here: Ray takes seconds to start one, and its workers to load torch.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from compare.comparisons import FOUR, small_words, timeless
from experiments.small import InProcess, quickly, without
from training.recipes import final_bits, small

from attnlab import cluster as clusters
from attnlab import json_files
from attnlab.audit.on_ray import crew_on
from attnlab.audit.sandbox import Limits, Request
from attnlab.audit.sweep import Job, sweep
from attnlab.cluster import Cluster, Session, at
from attnlab.compare.comparison import Comparison
from attnlab.compare.parse import parse
from attnlab.config import override
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation
from attnlab.experiments import worker
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.on_ray import RayPool
from attnlab.experiments.pool import Task
from attnlab.experiments.progress import Progress
from attnlab.studies.birthplaces import experiment
from attnlab.studies.birthplaces.experiment import BirthplacesStudy, Size
from attnlab.training.runs import Run

pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def speed():
    with quickly():
        yield


@pytest.fixture(scope="module")
def machines():
    """A cluster of one machine with one CPU, to which a test may add others."""
    clusters.import_quietly()
    from ray.cluster_utils import Cluster as Machines

    spin = os.environ.pop("GOMP_SPINCOUNT", None)  # as where `ray start` was typed
    made = Machines(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": clusters.STORE},
    )
    if spin is not None:
        os.environ["GOMP_SPINCOUNT"] = spin
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def here(machines):
    """Connected; who asks for a cluster meanwhile is given this one."""
    where = Cluster(machines.address)
    with where.connected():
        yield where


def killed(folder, at, kill):
    """Calls `kill` with the process that trains there when it has taken so many steps."""

    def wait():
        run = Run(folder)
        while len(run.read("metrics")) < at:
            time.sleep(0.005)
        kill(json_files.read_json(folder / "manifest.json")["pid"])

    threading.Thread(target=wait, daemon=True).start()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_lost_machine_costs_its_training_only_and_changes_no_bit(here, machines, tmp_path):
    """The machine is gone with its worker; the training goes on at the other one."""
    words = ["steps=400", "save_every=25", "evaluate_every=400"]
    tasks = [Task(f"t {n}", tmp_path / f"t{n}", small(*words, f"seed={n}")) for n in range(2)]
    more = machines.add_node(num_cpus=1, object_store_memory=clusters.STORE)
    machines.wait_for_nodes()
    (raylet,) = (one.process.pid for one in more.all_processes["raylet"])
    lost = list[str]()

    def kill(pid):
        if parent(pid) == raylet and not lost:
            lost.append("machine")
            machines.remove_node(more, allow_graceful=False)

    for task in tasks:
        killed(task.folder, 60, kill)
    seen = []
    endings = RayPool(here).train(
        tasks, tmp_path / "log.txt", lambda done, said: seen.append((done, said))
    )
    assert lost == ["machine"]
    assert endings == {task.name: {"ending": "finished", "why": ""} for task in tasks}
    for task in tasks:
        whole = Task("whole", tmp_path / f"whole-{task.name}", task.recipe)
        worker.train(whole.message())
        assert final_bits(Run(task.folder)) == final_bits(Run(whole.folder))
    assert seen[-1] == (800, "2 of 2 trainings done")


def test_a_comparison_is_stopped_goes_on_and_ends_as_in_local_processes(here, tmp_path):
    """Over the command line, on a cluster that was there before: one line when it is stopped."""
    words = small_words(tmp_path, *FOUR[:2], "steps=300", "evaluations=3", "seeds=1")
    command = [sys.executable, "-m", "attnlab", "compare", *words, "--json"]
    command += ["--on", "ray", "--address", here.address]

    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not list(tmp_path.glob("runs/*/runs/*/metrics.jsonl")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it, to every process of the group
    out, err = process.communicate(timeout=150)
    assert (process.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "stopped by Ctrl-C; the same command resumes it"
    assert "ray" not in err.lower() and "Traceback" not in err  # it is quiet
    comparison = Comparison(parse(words), RayPool(here))
    found = carry_out("", comparison, root=tmp_path / "runs", progress=Progress())
    assert len(list((tmp_path / "runs").iterdir())) == 1  # the folder that was stopped
    local = carry_out(
        "", Comparison(parse(words), InProcess()), root=tmp_path / "local", progress=Progress()
    )
    assert timeless(found.results) == timeless(local.results)


def test_a_study_trains_there_what_it_is_going_to_train(here, tmp_path, monkeypatch):
    """In two stages, of which one starts from the other; what is measured is measured here."""
    tiny = Size(people=14, steps=6, wordings=2, width=16, batch=4)
    monkeypatch.setitem(experiment.SIZES, "tiny", tiny)
    study = BirthplacesStudy(scale="tiny", arms=("none", "rotary"))

    def results(name, pool):
        record = carry_out(
            "birthplaces", study, root=tmp_path / name, progress=Progress(), pool=pool
        )
        pids = {
            json_files.read_json(path)["pid"] for path in record.folder.glob("runs/*/manifest.json")
        }
        return untimed(record.results), pids

    local, _ = results("local", None)
    found, pids = results("ray", RayPool(here))
    assert found == local and os.getpid() not in pids


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if "seconds" not in k}
    return [untimed(one) for one in value] if isinstance(value, list) else value


CODE = """
import os, pathlib, signal
from torch import nn

class Dies(nn.Linear):
    def __init__(self):
        os._exit(3)

class Strikes(nn.Linear):
    # ends the process of Ray above it, the first time
    def __init__(self):
        place = pathlib.Path("struck")
        if not place.exists():
            place.touch()
            above = os.getpid()
            while not pathlib.Path(f"/proc/{above}/cmdline").read_bytes().startswith(b"ray::"):
                status = pathlib.Path(f"/proc/{above}/stat").read_text()
                above = int(status.rpartition(")")[2].split()[1])
            os.kill(above, signal.SIGKILL)
            signal.pause()
        super().__init__(4, 4)
"""


def test_rows_of_a_sweep_are_those_of_local_workers_and_a_lost_worker_is_replaced(
    here, tmp_path, monkeypatch
):
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    names = ["code.py:Strikes", "code.py:Dies"]
    jobs = [Job(request=Request(target=name)) for name in names]
    limits = Limits()
    found = sweep(jobs, crew=lambda todo: crew_on(here, limits, todo)).rows
    assert Path("struck").exists()  # and then it was audited
    assert [row["verdict"] for row in found] == ["pass", "incomplete"]
    local = sweep(jobs, limits=limits).rows
    assert [without(row, "seconds") for row in found] == [without(row, "seconds") for row in local]


@pytest.mark.parametrize("packed", [False, True])
def test_a_preparation_gives_the_same_bytes(here, tmp_path, packed):
    source = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": f"document {n}: " + "abc" * (n % 7)}) for n in range(4000)]
    source.write_text("\n".join(lines))
    if packed:
        subprocess.run(["gzip", source], check=True)
        source = source.with_suffix(".jsonl.gz")
    settings = override(Preparation(), ["tokenizer=characters", "part=20KB", "workers=1"])
    prepare(settings, str(source), tmp_path / "local")
    told = prepare(settings, str(source), tmp_path / "ray", cluster=here)

    def contents(name):
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    assert contents("ray") == contents("local") and len(contents("ray")) > 20
    assert told["workers"] >= 1 and told["train_documents"] + told["validation_documents"] == 4000


def test_what_is_wrong_with_a_document_is_one_line_from_there_too(here, tmp_path):
    source = tmp_path / "text.jsonl"
    source.write_text('{"text": "a"}\n{"text": 3}\n' * 5)
    settings = override(Preparation(), ["tokenizer=bytes", "part=20B"])
    with pytest.raises(ValueError, match=r"text\.jsonl.*: a document .*mend it") as error:
        prepare(settings, str(source), tmp_path / "tokens", cluster=here)
    assert "\n" not in str(error.value) and "worker" not in str(error.value)


@pytest.mark.parametrize(("given", "seen"), [(None, "1000"), ("7", "7")])
def test_workers_of_a_cluster_that_was_there_before_us_do_not_wait_busily(
    here, monkeypatch, given, seen
):
    """Where `ray start` was typed, the environment had none of our variables."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    with here.connected() as session:
        calls = session.calls(os.getenv)
        calls.give("one", "GOMP_SPINCOUNT")
        found = []
        while calls.under_way:
            found += calls.ended()
    assert found == [("one", seen)]


class Elsewhere:
    """A cluster of two machines: one is gone, the other answers as it is told."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self, answer):
        self.answer = answer

    def nodes(self):
        gone = {"Alive": False, "NodeID": "cd" * 28, "NodeManagerHostname": "gone"}
        return [gone, {"Alive": True, "NodeID": "ab" * 28, "NodeManagerHostname": "far"}]

    def cluster_resources(self):
        return {"CPU": 4.0}

    def remote(self, *words, **options):
        """A task's options, or its call."""
        return (lambda function: self) if options else ""

    def options(self, **options):
        return self

    def get(self, answer, timeout=None):
        if self.answer == "lost":
            self.nodes = list
            raise RuntimeError("the node does not exist any more")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"word": "", "writable": False}, r"far .*cannot read .* that all machines"),
        (RuntimeError("x\nno disk"), r"far .*cannot work for attnlab: RuntimeError: x"),
    ],
)
def test_a_folder_that_a_machine_cannot_use_is_refused(tmp_path, answer, line):
    with pytest.raises(ValueError, match=line):
        Session(Elsewhere(answer)).refuse_unshared(tmp_path, "--runs")
    assert not list(tmp_path.iterdir())


def test_a_machine_that_is_lost_when_it_is_asked_has_no_say(tmp_path):
    Session(Elsewhere("lost")).refuse_unshared(tmp_path, "--runs")


def test_a_folder_that_a_machine_cannot_write_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters.secrets, "token_hex", lambda count: "word")
    answer = {"word": "word", "writable": False}
    with pytest.raises(ValueError, match=r"far .*cannot write to .* --runs must name a folder"):
        Session(Elsewhere(answer)).refuse_unshared(tmp_path, "--runs")


def test_other_versions_and_what_a_cluster_lacks_are_refused():
    there = {**clusters.versions(), "torch": "0.1"}
    with pytest.raises(ValueError, match=r"far .*has torch 0\.1 and not .*install the same"):
        Session(Elsewhere(there)).refuse_other_versions()
    Session(Elsewhere(clusters.versions())).refuse_other_versions()
    Session(Elsewhere({})).require("CPU")
    with pytest.raises(ValueError, match="has no GPU for work; start a machine that has one"):
        Session(Elsewhere({})).require("GPU")


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: Connection refused"),
        ("nowhere", "an address is HOST:PORT, as 10.0.0.1:6379"),
        ("ray://127.0.0.1:10001", "a client's address; start the command on a machine of the"),
    ],
)
def test_a_wrong_address_is_one_line_at_once(address, line, monkeypatch):
    """Ray itself waits for minutes where nobody answers."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda *given, **named: pytest.fail("it would wait"))
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(ValueError, match=line), Cluster(address).connected():
        pass


@pytest.mark.parametrize("known", [None, "192.0.2.1:6379"])
def test_a_new_cluster_is_started_only_where_none_is_asked_for(monkeypatch, known):
    asked = []

    def init(address, **named):
        asked.append(address)
        if address != "local":
            raise ConnectionError("nobody\nmore")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr(clusters, "_knock", lambda address: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if known is None:
        with Cluster().connected():
            pass
        assert asked == ["auto", "local"]
        return
    monkeypatch.setenv("RAY_ADDRESS", known)
    with pytest.raises(ValueError, match=f"no Ray cluster at {known}: nobody more"):
        with Cluster().connected():
            pass
    assert asked == [known]


def test_the_handlers_of_signals_stay_ours(monkeypatch):
    """Ray would end the process without a word, and with another exit code."""
    before = signal.getsignal(signal.SIGTERM)

    def init(**named):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with Cluster("local").connected():
        assert signal.getsignal(signal.SIGTERM) is before


def test_without_the_package_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'attnlab\[ray\]'"):
        at("ray", None)
    assert at("local", None) is None
