"""Shapes in signatures are checked in every test, when beartype is installed."""

import gc
import importlib.util
import os
import resource
import signal
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # cli/app.py does the same and says why

import jaxtyping
import pytest
import torch

for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):  # output is read as plain text
    os.environ.pop(name, None)

# In the background of a script or under nohup a process ignores these, and so would all that tests
# start: what is ignored stays so (attnlab/stop.py).
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: one thread for each
    torch.set_num_threads(1)

if importlib.util.find_spec("beartype"):
    import typechecker

    jaxtyping.jaxtyped = typechecker.jaxtyped  # which the hook names
    jaxtyping.install_import_hook("attnlab", "typechecker.check")


# What `--quick` (make check) leaves out. The rule: a file, or a folder of them, that takes over
# 5 seconds of one core. Files not named here are quick, and each name must exist: a test that moves
# takes its name along. `make check` ends with its slowest tests; what belongs here shows there.
SLOW = [
    "api",
    "attention/test_delta.py",
    "attention/test_latent.py",
    "attention/test_rotary_scaling.py",
    "audit/bugs",
    "audit/hf",
    "audit/mutants",
    "audit/plugins",
    "audit/repro",
    "audit/test_before_training.py",
    "audit/test_examine.py",
    "audit/test_sandbox.py",
    "audit/test_sweep.py",
    "audit/probe/test_layouts.py",
    "audit/properties/test_cache.py",
    "audit/properties/test_causality.py",
    "audit/properties/test_device.py",
    "audit/properties/test_heads.py",
    "audit/properties/test_positions.py",
    "audit/properties/test_precision.py",
    "audit/properties/test_prefix.py",
    "audit/properties/test_weights.py",
    "audit/properties/test_window.py",
    "audit/subject/test_caches.py",
    "audit/subject/test_calls.py",
    "audit/subject/test_jax_code.py",
    "audit/subject/test_protocols.py",
    "bench/test_prepare.py",
    "bench/test_transformers.py",
    "bench/test_window.py",
    "checks",
    "cli",
    "data/prepared/test_making.py",
    "doctor/test_pairs.py",
    "doctor/test_real.py",
    "examples",
    "compare/test_comparison.py",
    "contracts/test_run_files.py",
    "experiments/test_local.py",
    "experiments/test_on_ray.py",
    "interop/test_converting.py",
    "interop/test_exporting.py",
    "interop/test_families.py",
    "interop/test_modeling.py",
    "interop/test_parity.py",
    "interop/test_tokens.py",
    "integrations",
    "kernels/test_delta.py",
    "kernels/test_dispatch.py",
    "kernels/test_equality.py",
    "kernels/test_native.py",
    "models/test_graphs.py",
    "models/test_static_step.py",
    "kernels/test_triton.py",
    "kernels/test_triton_compiles.py",
    "models/test_transformer.py",
    "models/test_variants.py",
    "page/test_auditing.py",
    "page/test_browser.py",
    "page/test_claims.py",
    "page/test_generate_browser.py",
    "peers",
    "reports/test_plots.py",
    "studies/birthplaces/test_experiment.py",
    "studies/recurrent",
    "studies/rope_gqa/test_experiment.py",
    "studies/window",
    "test_generate.py",
    "test_screen.py",
    "theory/test_document.py",
    "theory/test_knowledge.py",
    "theory/test_result.py",
    "training/test_heartbeat.py",
    "training/test_launch.py",
    "training/test_listing.py",
    "training/test_loop.py",
    "training/test_parallel.py",
    "training/test_setup.py",
    "training/test_sharded.py",
    "training/test_writer.py",
]
TESTS = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out what is slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than cores: tests wait for processes that they start, and cores need not."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    return (os.cpu_count() or 1) + 1


def pytest_configure(config):
    missing = [name for name in SLOW if not (TESTS / name).exists()]
    if missing:
        raise pytest.UsageError(f"SLOW in tests/conftest.py names no test: {', '.join(missing)}")


def pytest_ignore_collect(collection_path, config):
    """Not even imported: to collect all files takes half a minute."""
    slow = config.getoption("--quick") and any(
        collection_path.is_relative_to(TESTS / name) for name in SLOW
    )
    return True if slow else None


def pytest_collection_modifyitems(items):
    """Without a C compiler, what tests the compiled path is skipped and says so."""
    from attnlab.kernels import native

    reason = native.why_unavailable()
    for item in items if reason else []:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        by_name = any(isinstance(value, str) and value == "native" for value in values)
        if by_name or item.get_closest_marker("needs_compiler"):
            item.add_marker(pytest.mark.skip(reason=f"no compiled path here: {reason}"))


def pytest_collection_finish():
    """What was imported and collected stays: no collection of garbage walks it again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Tests that did not run because there is no browser are easily taken for tests that passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {one.longrepr[2] for one in skipped if isinstance(one.longrepr, tuple)}
    for reason in sorted(one for one in reasons if "not tested in a browser" in one):
        terminalreporter.write_line(f"WARNING: {reason}", yellow=True, bold=True)


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Without the shape checks of the tests: what a person's wrong input meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def poisoned_memory():
    """`torch.empty` and its kin come filled with NaN, so that reading before writing shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def full_disk():
    """Files have room for 3,000 bytes: a limit on their size stands in for the end of the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
