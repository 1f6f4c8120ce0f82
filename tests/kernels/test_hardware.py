"""Facts about the machine, to stand beside what was trained or measured on it."""

import json
import platform

import torch

from attnlab import __version__
from attnlab.kernels import hardware


def test_the_machine_names_versions_device_and_processor():
    found = hardware.machine(torch.device("cpu"))
    assert found == json.loads(json.dumps(found))
    assert found["attnlab"] == __version__ and found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["device"] == f"cpu {platform.machine()}"
    assert found["cores"] >= 1 and found["threads"] == torch.get_num_threads()
    assert hardware.description().items() <= found.items()


def test_the_machines_id_stays_the_same_and_is_short():
    assert hardware.machine_id() == hardware.machine_id.__wrapped__()
    assert len(hardware.machine_id()) == 12


def test_the_matrix_rate_counts_two_operations_a_pair(monkeypatch):
    """With a clock that says a millisecond between any two looks."""
    looks = iter(range(100))
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(looks) / 1000)
    found = hardware.matrix_rate.__wrapped__(torch.device("cpu"), torch.float32)
    assert abs(found / (2 * 1024**3 / 1e-3) - 1) < 1e-9
