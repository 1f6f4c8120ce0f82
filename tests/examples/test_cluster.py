"""The files in examples/cluster: scripts run with stubs for srun, ray and ssh; commands parse."""

import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import typer

from attnlab import registry
from attnlab.cli import app
from attnlab.cli.words import Verb, alike
from attnlab.config import override

yaml = pytest.importorskip("yaml")
CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPTS = sorted(CLUSTER.glob("*.sh"))
# notes how it was called, then does what a real one would
LOG = '#!/bin/bash\nprintf "%q " "$(basename "$0")" "$@" >>"$LOG"; echo >>"$LOG"\n'
STUBS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"\n',
    "scontrol": '[ "$1" != show ] || printf "one\\ntwo\\nthree\\n"\n',
    "getent": 'echo "127.0.0.1 STREAM one"\n',
    "hostname": 'echo "127.0.0.1 10.0.0.1"\n',
    "torchrun": '[ -z "${WAITS:-}" ] || { trap "echo saved >>$LOG; exit 0" TERM; '
    "echo waits >>$LOG; while true; do sleep 0.05; done; }\n",
    **dict.fromkeys(("ray", "attnlab", "ssh"), ""),
}


@pytest.fixture
def run(tmp_path):
    """Starts a script in the place of Slurm or a person; its calls are in a log."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    log.touch()
    for name, does in STUBS.items():
        (programs / name).write_text(LOG + does)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_JOB_NODELIST": "x[1-3]", "SLURM_NNODES": "3", "SLURM_JOB_ID": "7"}
    slurm |= {"SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "8"}

    def begin(name, *words, **env):
        known = {**os.environ, **slurm, "PATH": path, "LOG": str(log), **env}
        return subprocess.Popen(["bash", CLUSTER / name, *words], cwd=tmp_path, env=known)

    begin.calls = lambda: [shlex.split(line) for line in log.read_text().splitlines()]
    return begin


def parsed(words):
    """The parameters of an attnlab command; a SystemExit or an error if they are wrong."""
    assert words[0] == "attnlab"
    verb = typer.main.get_command(app).commands[words[1]]
    given = alike(words[2:], Verb.of(verb))
    return verb.make_context(words[1], given).params


def check_training(words):
    """Of torchrun, as its own parser reads it, and of the preset with its settings."""
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(words)
    assert found.module and found.training_script == "attnlab"
    params = parsed(["attnlab", *found.training_script_args])
    assert params["resume"] == "auto"
    settings = [one for one in params["overrides"] if not one.startswith("data=")]
    override(registry.load("preset", params["preset"])(), settings)
    return found


def check_comparison(words):
    pytest.importorskip("ray")
    from attnlab.api.comparing import prepare

    params = parsed(words)
    prepare(params["words"], on=params["on"], address=params["address"], processes=4)
    assert params["on"] == "ray"
    return params


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_and_named_in_the_list(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert f"]({path.name})" in (CLUSTER / "README.md").read_text()
    assert len([line for line in path.read_text().splitlines()[1:4] if line[:2] == "# "]) >= 2


def test_slurm_starts_ray_here_and_elsewhere_and_compares(run):
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        assert run("slurm-ray.sh", PORT=str(port), RUNS="/shared/runs").wait() == 0
    while len([call for call in run.calls() if call[:1] == ["ray"]]) < 2:  # in the background
        time.sleep(0.02)
    calls = [call for call in run.calls() if call[0] in ("ray", "attnlab")]
    [first] = [call for call in calls if "--head" in call]
    [other] = [call for call in calls if f"--address=127.0.0.1:{port}" in call]
    for call in (first, other):
        assert {"--num-cpus=32", "--num-gpus=8", "--block"} <= set(call)
    [words] = [call for call in calls if call[0] == "attnlab"]
    params = check_comparison(words)
    assert params["address"] == f"127.0.0.1:{port}" and params["root"] == Path("/shared/runs")
    assert ["srun", "--nodes=2", "--ntasks=2", "--exclude=one"] in [
        call[:4] for call in run.calls()
    ]


def test_slurm_trains_with_torchrun_on_every_machine(run):
    assert run("slurm-train.sh").wait() == 0
    [words] = [call[1:] for call in run.calls() if call[0] == "torchrun"]
    found = check_training(words)
    assert (found.nnodes, found.nproc_per_node, found.rdzv_endpoint) == ("3", "8", "one:29500")
    assert ["scontrol", "requeue", "7"] not in run.calls()


def test_when_its_time_is_over_a_training_saves_and_is_queued_again(run):
    process = run("slurm-train.sh", WAITS="yes")
    while ["waits"] not in run.calls():
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 0
    assert run.calls()[-2:] == [["saved"], ["scontrol", "requeue", "7"]]


def test_ssh_starts_ray_on_every_host_and_stops_it(run, tmp_path):
    words = ["attnlab", "audit", "hf:all", "--out", "rows.jsonl"]
    assert run("ssh-ray.sh", "two", "three", "--", *words).wait() == 0
    calls = [call for call in run.calls() if call[0] in ("ray", "attnlab", "ssh")]
    assert [call[1] for call in calls if call[0] == "ssh"] == ["two", "three"] * 2
    there = [call[2] for call in calls if call[0] == "ssh"]
    assert all(line.startswith(f"cd {tmp_path} && PATH=") for line in there)
    assert [line.split("PATH ")[1] for line in there] == [
        *["ray start --address=127.0.0.1:6379"] * 2,
        *["ray stop"] * 2,
    ]
    [given] = [call for call in calls if call[0] == "attnlab"]
    assert given == [*words, "--on", "ray", "--address", "127.0.0.1:6379"]
    params = parsed(given)
    assert (params["on"], params["out"]) == ("ray", Path("rows.jsonl"))
    assert run("ssh-ray.sh", "two").wait() == 2


def test_ssh_trains_here_and_on_every_host(run):
    assert run("ssh-train.sh", "two", "--", "tiny", "steps=2000").wait() == 0
    [here] = [call[1:] for call in run.calls() if call[0] == "torchrun"]
    assert check_training(here).nnodes == "2"
    while not (there := [call for call in run.calls() if call[0] == "ssh"]):  # in the background
        time.sleep(0.02)
    [there] = there
    assert there[:3] == ["ssh", "-tt", "two"]
    assert shlex.split(there[3].split(" exec ")[1]) == ["torchrun", *here]


def containers(pod):
    return pod["spec"]["containers"]


def test_kubernetes_trains_on_numbered_pods_that_find_each_other():
    service, job = yaml.safe_load_all((CLUSTER / "kubernetes-train.yaml").read_text())
    pod = job["spec"]["template"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["spec"]["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    [one] = containers(pod)
    found = check_training([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in one["args"]])
    assert int(found.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert found.nproc_per_node == one["resources"]["limits"]["nvidia.com/gpu"]
    assert found.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    mounted(pod)


def test_a_rayjob_compares_on_gpus_with_a_folder_that_all_pods_share():
    job = yaml.safe_load((CLUSTER / "kubernetes-rayjob.yaml").read_text())["spec"]
    params = check_comparison(shlex.split(job["entrypoint"]))
    head = job["rayClusterSpec"]["headGroupSpec"]["template"]
    [group] = job["rayClusterSpec"]["workerGroupSpecs"]
    for pod in (head, group["template"]):
        assert str(params["root"]).startswith(mounted(pod))
    # the command and a training fit on one GPU, since each is given out as a part
    assert job["entrypointNumGpus"] + 1 / params["processes"] <= 1


def mounted(pod):
    """Where the shared volume is; every mount has its volume."""
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    places = {one["name"]: one["mountPath"] for c in containers(pod) for one in c["volumeMounts"]}
    assert set(places) == set(volumes) and "persistentVolumeClaim" in volumes["shared"]
    return places["shared"]
