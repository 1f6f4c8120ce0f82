"""A Ray cluster: connected to or started, looked at, and given calls to carry out (extra: ray).

    at("ray", address) -> Cluster         what --on and --address ask for
    Cluster.connected() -> Session        a cluster that answers
    Session.calls(function) -> Calls      calls of a function of this package, with plain arguments

A call has one CPU, or more and a part of a GPU. When its worker or its machine is lost, Ray makes
it again elsewhere, so a call must be one that can be made twice.
"""

import hashlib
import io
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeVar

from attnlab import __version__, files
from attnlab.extras import missing
from attnlab.printable import one_line
from attnlab.stop import NUMBERS
from attnlab.suggestions import suggest

T = TypeVar("T")
PLACES = ("local", "ray")
RETRIES = 5  # of a call whose worker was lost
STORE = 80 * 2**20  # bytes for objects in a new cluster: calls exchange short messages
KNOCK = 5.0  # seconds that a cluster may take to open a connection
PATIENCE = 60.0  # seconds that a machine may take to answer
POLL = 0.5  # seconds between two looks at what has ended
# what decides the results, and must be the same on all machines
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def at(on: str, address: str | None) -> "Cluster | None":
    """The cluster that is asked for; None for this machine."""
    if on not in PLACES:
        raise ValueError(f"--on is {on!r}; {suggest(on, list(PLACES))}")
    if on == "local":
        if address is not None:
            raise ValueError("--address is of a Ray cluster; write --on ray too")
        return None
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ValueError(missing("ray", "--on ray")) from None
    return Cluster(address)


@dataclass(frozen=True)
class Cluster:
    """The cluster at an address, else at RAY_ADDRESS, else one that is here, else a new one.

    The address "local" always starts a new one, of this machine alone.
    """

    address: str | None = None

    @property
    def words(self) -> list[str]:
        """As they stand on a command line."""
        return ["--on", "ray", *(["--address", self.address] if self.address else [])]

    @contextmanager
    def connected(
        self, processors: int | None = None, store: int = STORE, log: IO[str] | None = None
    ) -> Iterator["Session"]:
        """`processors` and `store` (bytes) are of a new cluster; what Ray prints, to the log."""
        # Ray reports lost workers on stdout, where results belong
        with redirect_stdout(log or io.StringIO()):
            import_quietly()
            import ray

            if ray.is_initialized():  # whoever started it also stops it
                yield Session(ray)
                return
            try:
                with _our_signals():
                    self._connect(ray, processors, store)
                yield Session(ray)
            finally:
                ray.shutdown()

    def _connect(self, ray: ModuleType, processors: int | None, store: int) -> None:
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        own = {"num_cpus": processors, "object_store_memory": store, "include_dashboard": False}
        address = self.address or os.environ.get("RAY_ADDRESS")
        try:
            if address not in (None, "local", "auto"):
                _knock(str(address))
            ray.init(address=address or "auto", **(own if address == "local" else {}), **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            if address or not isinstance(error, ConnectionError):
                why = one_line(getattr(error, "strerror", None) or error)
                raise ValueError(f"no Ray cluster at {address or 'auto'}: {why}") from None
            ray.init(address="local", **own, **quiet)  # there is none here


def import_quietly() -> None:
    """What Ray reads from the environment when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _knock(address: str) -> None:
    """Ray itself waits for minutes where nobody answers."""
    if address.startswith("ray://"):
        raise ValueError(
            "that is a client's address; start the command on a machine of the cluster, as "
            "`ray job submit` does, with its own address (HOST:6379)"
        )
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit()):
        raise ValueError("an address is HOST:PORT, as 10.0.0.1:6379; or local, or auto")
    with socket.create_connection((host.strip("[]"), int(port)), KNOCK):
        pass


@contextmanager
def _our_signals() -> Iterator[None]:
    """Ray puts a handler of its own in the place of ours, which ends the process without a word."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        with suppress(ValueError):  # not in the main thread: there are no handlers
            for number, handler in before.items():
                signal.signal(number, handler)


class Lost(Exception):
    """A call has no answer: why, in one line."""


class Session:
    """A cluster that answers."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def total(self, resource: str) -> int:
        """How many of a resource ("CPU", "GPU") there are in all."""
        return int(self.ray.cluster_resources().get(resource, 0))

    def require(self, resource: str) -> None:
        """Without it calls would wait for ever."""
        if not self.total(resource):
            raise ValueError(
                f"the Ray cluster has no {resource} for work; start a machine that has one, "
                "as `ray start --address=HOST:6379` does"
            )

    def ask_all(self, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
        """What a function gives on each machine, by the name of the machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self.ray.remote(num_cpus=0)(function)
        asked = {}
        for node, name in self._machines().items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            asked[node, name] = remote.options(scheduling_strategy=there).remote(*given)
        found = {}
        for (node, name), reference in asked.items():
            try:
                found[name] = self.ray.get(reference, timeout=PATIENCE)
            except self.ray.exceptions.RayError as error:
                if node not in self._machines():  # lost since it was asked
                    continue
                raise ValueError(f"{name} cannot work for attnlab: {_last_line(error)}") from None
        return found

    def _machines(self) -> dict[str, str]:
        """Names of those that are there, by what Ray calls them."""
        return {
            node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})"
            for node in self.ray.nodes()
            if node["Alive"]
        }

    def refuse_other_versions(self) -> None:
        """Machines with other packages would give other results."""
        here = versions()
        for name, there in self.ask_all(versions).items():
            other = [
                f"{package} {there[package]} and not {here[package]}"
                for package in here
                if there[package] != here[package]
            ]
            if other:
                raise ValueError(f"{name} has {', '.join(other)}; install the same everywhere")

    def refuse_unshared(self, folder: Path, what: str) -> None:
        """Every machine must read and write where `what` says."""
        word = secrets.token_hex(8)
        path = folder.absolute() / f".shared.{os.getpid()}.tmp"
        files.write_whole(path, word.encode())
        try:
            for name, there in self.ask_all(look, str(path)).items():
                if there["word"] != word:
                    raise ValueError(f"{name} cannot read {folder}; {what} {SHARED}")
                if not there["writable"]:
                    raise ValueError(f"{name} cannot write to {folder}; {what} {SHARED}")
        finally:
            path.unlink(missing_ok=True)

    def calls(self, function: Callable[..., Any], **options: Any) -> "Calls":
        return Calls(self.ray, function, **options)


SHARED = "must name a folder on a filesystem that all machines of the cluster share"


def versions() -> dict[str, str]:
    """Of the packages that decide results; empty for one that is not installed."""
    found = {"attnlab": f"{__version__} with code {_own_code()}", **dict.fromkeys(PACKAGES, "")}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _own_code() -> str:
    """A hash of this package: a checkout changes without its version."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {files.sha256(path)}\n".encode())
    return digest.hexdigest()[:8]


def look(path: str) -> dict[str, Any]:
    """What another machine sees of a file, and whether it may write beside it."""
    try:
        word = files.read(Path(path), 1024).decode()
    except OSError:
        return {"word": "", "writable": False}
    return {"word": word, "writable": os.access(Path(path).parent, os.W_OK)}


class Calls:
    """Calls under way, by a key of their own."""

    def __init__(
        self,
        ray: Any,
        function: Callable[..., Any],
        *,
        cpus: float = 1,
        gpus: float = 0,
        surroundings: Mapping[str, str] | None = None,
    ) -> None:
        # cli/app.py sets it and says why; a cluster that was started before us does not have it,
        # and within a task torch is loaded already
        spin = {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
        environment = {"env_vars": {**spin, **(surroundings or {})}}
        self._ray = ray
        self._remote = ray.remote(**options, runtime_env=environment)(function)
        self._keys: dict[Any, Any] = {}

    @property
    def under_way(self) -> int:
        return len(self._keys)

    def give(self, key: Any, *given: Any, gpus: float | None = None) -> None:
        remote = self._remote if gpus is None else self._remote.options(num_gpus=gpus)
        self._keys[remote.remote(*given)] = key

    def ended(self, timeout: float = POLL) -> Iterator[tuple[Any, Any]]:
        """Keys and answers, as they come; of what has none, its Lost."""
        if not self._keys:
            return
        ready, _ = self._ray.wait(list(self._keys), timeout=timeout)
        for reference in ready:
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                answer = Lost(_last_line(error))
            yield self._keys.pop(reference), answer

    def future(self, read: Callable[[Any], T], *given: Any) -> "Future[T]":
        """Of one call: `read` is given its answer or its Lost, and returns or raises."""
        found: Future[T] = Future()
        reference = self._remote.remote(*given)
        self._keys[reference] = None

        def end(raw: "Future[Any]") -> None:
            self._keys.pop(reference, None)
            error = raw.exception()
            try:
                found.set_result(read(raw.result() if error is None else Lost(_last_line(error))))
            except Exception as raised:  # raised again where the answer is asked for
                found.set_exception(raised)

        reference.future().add_done_callback(end)
        return found

    def cancel(self, grace: float = 0.0) -> None:
        """With seconds of grace, calls get KeyboardInterrupt, to save and return."""
        references = list(self._keys)
        for reference in references:
            self._ray.cancel(reference, force=not grace)
        until = time.monotonic() + grace
        while references and time.monotonic() < until:
            _, references = self._ray.wait(references, num_returns=len(references), timeout=POLL)
        self._keys.clear()


def _last_line(error: BaseException) -> str:
    """Of an error with the traceback of another machine: what that ended with."""
    name = type(error).__name__
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if name.startswith("RayTaskError"):
        return one_line(lines[-1] if lines else name, 300)
    return one_line(f"{name}: {lines[0] if lines else ''}", 300)
