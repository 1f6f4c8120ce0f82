"""`attnlab check kill`: a run that is killed again and again ends with the same bits.

A tiny training is run once undisturbed, then many times by processes that are killed (SIGKILL) at
random moments, a third of them inside a save, each going on where the last one left off. Weights,
optimiser and logs must end bitwise equal. Controls, which forget one thing on going on, must not.

With `processes` above 1 they share the weights out and each writes its shards. One of them is
killed; the others are killed with it, or are left to notice and to end by themselves.
"""

import contextlib
import hashlib
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnlab import config, counter_rng, stop
from attnlab.checks import Tick
from attnlab.config import setting, settings
from attnlab.data.batches import Batch
from attnlab.data.biographies import Biographies
from attnlab.data.objectives import Questions
from attnlab.models.transformer import TransformerSettings
from attnlab.stop import stoppable
from attnlab.training import checkpoint, parallel, runs, sharded
from attnlab.training.heartbeat import Lost
from attnlab.training.loop import Training, train
from attnlab.training.optim import Muon, Optimiser
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report
from attnlab.training.setup import prepare
from attnlab.training.writer import Save

Control = Literal["none", "optimiser", "random", "position"]
CONTROLS: tuple[Control, ...] = ("optimiser", "random", "position")
COMPARED = ("metrics.jsonl", "eval.jsonl")
TIMEOUT = 60.0  # seconds in which a process must have noticed that another is gone
LOST = 3  # the status of one that has


@settings
class KillCheck:
    kills: int = setting(200, low=1, about="times that a training process is killed")
    steps: int = setting(60, low=1, about="steps of the training")
    save_every: int = setting(3, low=1, about="steps between checkpoints")
    control_kills: int = setting(6, low=1, about="kills for each control, which must differ")
    processes: int = setting(
        1, low=1, high=8, about="processes that train together; 2 or more save in shards"
    )
    seed: int = setting(0, about="random seed of the training and of the moments of killing")

    def run(self, tick: Tick) -> dict[str, Any]:
        recipe = tiny_recipe(self)
        if self.processes > 1:
            import torch.distributed.fsdp  # noqa: F401  # here once, and not in every process
        with tempfile.TemporaryDirectory(prefix="attnlab-kill-") as place:
            folder = Path(place)
            tick("the undisturbed run")
            with Life(recipe, runs.create(folder, "whole"), "none", self.processes) as life:
                life.wait()
            whole = fingerprint(life.run)
            found = self._kill_runs(folder, recipe, whole, "none", self.kills, tick)
            report: dict[str, Any] = dict(found)
            for control in CONTROLS:
                tick(f"control: forgetting the {control}")
                kills = self.control_kills
                with stoppable(lambda: f"{self.kills} kills, before the controls", found.copy):
                    broken = self._kill_runs(folder, recipe, whole, control, kills, tick)
                report[f"control_without_{control}"] = (
                    f"{broken['runs_equal']} of {broken['runs']} equal (none should be)"
                )
                found["controls_fail"] = found.get("controls_fail", True) and (
                    broken["runs_equal"] == 0
                )
        report["passed"] = bool(
            found["runs_equal"] == found["runs"]
            and found["broken_checkpoints"] == 0
            and found["kills_inside_a_save"] * 3 >= found["kills"]
            and found["controls_fail"]
        )
        return report

    def _kill_runs(
        self,
        folder: Path,
        recipe: Recipe,
        whole: dict[str, str],
        control: Control,
        kills: int,
        tick: Tick,
    ) -> dict[str, Any]:
        """Runs killed until there were enough kills and the last run has come to its end."""
        killed = inside = finished = equal = broken = noticed = spared = 0

        def counts() -> dict[str, Any]:
            return {
                "kills": killed,
                "kills_inside_a_save": inside,
                "runs": finished,
                "runs_equal": equal,
                "broken_checkpoints": broken,
                **({"others_noticed": noticed} if self.processes > 1 else {}),
            }

        with stoppable(lambda: f"{killed} of {kills} kills", counts):
            while killed < kills or finished == 0:
                run = runs.create(folder, f"killed-{control}")
                gone_on = False
                while not run.finished:
                    gone_on |= bool(checkpoint.all_in(run.checkpoints))
                    with Life(recipe, run, control, self.processes) as life:
                        if killed >= kills and gone_on:
                            life.wait()
                        else:
                            life.kill_at(
                                self._moment(control, killed + spared, inside * 3 <= killed)
                            )
                    killed += life.was_killed
                    spared += not life.was_killed  # it ended first, so the next moment is another
                    inside += life.inside_save
                    noticed += life.noticed
                    # what stands under a checkpoint's name must be whole at every moment
                    there = checkpoint.all_in(run.checkpoints)
                    broken += sum(not checkpoint.is_good(one) for one in there)
                    said = f"{killed} kills, {inside} of them inside a save"
                    tick(f"{said}, {finished} runs finished")
                finished += gone_on  # a run that was never interrupted proves nothing
                equal += gone_on and fingerprint(run) == whole
        return counts()

    def _moment(self, control: str, number: int, saving: bool) -> "Moment":
        draws = counter_rng.uniform(self.seed, f"kill {control}", number, [0, 1, 2, 3])
        first, second, third, fourth = draws
        victim, leave = int(third * self.processes), bool(fourth < 0.5)
        if saving:
            wide = 3e-3 if self.processes == 1 else 3e-2  # several have to wait for each other
            return Moment(b"b", 1 + int(first * 4), second * wide, victim, leave)
        return Moment(b"s", int(first * 5 * self.save_every), second * 2e-2, victim, leave)


@dataclass(frozen=True)
class Moment:
    """When to kill which process: after so many steps or saves have begun, and a moment more."""

    word: bytes
    number: int
    delay: float
    victim: int
    leave: bool  # the others, to see what they do


def tiny_recipe(check: KillCheck) -> Recipe:
    """Small, with everything that could be forgotten: dropout, momentum, epochs, evaluations."""
    settings = TransformerSettings(context=64, width=16, depth=2, dropout=0.1, norm_heads=True)
    return Recipe(
        corpus=Biographies(people=14, wordings=1),
        objective=Questions(),
        model=config.override(settings, ["attention.heads=2"]),
        optimiser=Muon(),
        batch=max(4, 2 * check.processes),
        accumulate=2,
        steps=check.steps,
        save_every=check.save_every,
        evaluate_every=7,
        seed=check.seed,
        device="cpu",
        parallel="fsdp",
        timeout=TIMEOUT,
    )


class Life:
    """Processes that train together until they end or one is killed."""

    def __init__(self, recipe: Recipe, run: runs.Run, control: Control, processes: int) -> None:
        self.run, self.noticed = run, 0
        self._victim: Process | None = None
        address = free_address() if processes > 1 else {}
        self._processes = list[Process]()
        try:
            for rank in range(processes):
                place = address and {**address, "RANK": str(rank), "WORLD_SIZE": str(processes)}
                self._processes.append(Process(recipe, run, control, place))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happens here, no process outlives it, nor writes to its folder."""
        for one in self._processes:
            one.kill()

    def wait(self) -> None:
        for one in self._processes:
            one.end()
            if one.status != 0:
                raise RuntimeError(f"the training ended with status {one.status}")

    def kill_at(self, moment: Moment) -> None:
        self._victim = victim = self._processes[moment.victim]
        victim.kill_at(moment)
        begun = b"s" in victim.heard  # before, torchrun would end the others: they wait for all
        for one in self._processes:
            if one is not victim and not (moment.leave and begun and self.was_killed):
                one.kill()
        for one in self._processes:
            one.end()
            self.noticed += os.waitstatus_to_exitcode(one.status or 0) == LOST

    @property
    def was_killed(self) -> bool:
        return self._victim is not None and self._victim.status == signal.SIGKILL

    @property
    def inside_save(self) -> bool:
        return self.was_killed and self._victim is not None and self._victim.saving


class Process:
    """A process that trains; it tells when it is inside a save."""

    def __init__(
        self, recipe: Recipe, run: runs.Run, control: Control, place: dict[str, str]
    ) -> None:
        self._ears, mouth = os.pipe()
        self.heard = b""
        self.status: int | None = None
        with stop.sparing_children():
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._ears)
                os.environ.update(place)
                _live(recipe, run, control, mouth)
        os.close(mouth)

    def kill(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.end()

    def kill_at(self, moment: Moment) -> None:
        """Kill it a little after it has said a word so many times; 0 times: as it begins."""
        while self.heard.count(moment.word) < moment.number and self._hear():
            pass
        time.sleep(moment.delay)
        self.kill()

    @property
    def saving(self) -> bool:
        return self.heard.count(b"b") > self.heard.count(b"e")

    def end(self) -> None:
        if self.status is None:
            while self._hear():
                pass
            self.status = os.waitpid(self._pid, 0)[1]
            os.close(self._ears)

    def _hear(self) -> bool:
        """Take in what the process says next; False when it has ended."""
        said = os.read(self._ears, 4096)
        self.heard += said
        return bool(said)


def free_address() -> dict[str, str]:
    """Where the processes of a training meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def _live(recipe: Recipe, run: runs.Run, control: Control, mouth: int) -> None:
    """What the process does; it never returns."""
    import torch

    status = 1
    for number in stop.NUMBERS:  # a terminal sends them to this process too, which is not asked
        signal.signal(number, signal.SIG_IGN)
    _hush_libraries()
    try:
        torch.set_num_threads(1)
        with parallel.world("cpu", TIMEOUT) as world, _speaking(mouth), _forgetting(control):
            begin = sharded.newest_good(world, run.checkpoints)[0]
            setup = prepare(recipe, run.folder.parent, world=world)
            train(setup, run, world, Report(), begin)
        status = 0
    except Lost:
        status = LOST
    except BrokenPipeError:  # the check itself was killed
        pass
    except BaseException:  # nothing is above this process that would say it
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)


def _hush_libraries() -> None:
    """What torch's libraries print of a lost connection is expected; what Python raises is not."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)


@contextlib.contextmanager
def _speaking(mouth: int) -> Iterator[None]:
    """An "s" before each step; a save and what is deleted after it between a "b" and an "e"."""
    plain_batch = Training._batch

    def told(write: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any) -> Any:
            os.write(mouth, b"b")
            found = write(*given)
            os.write(mouth, b"e")
            return found

        return act

    plain_saving = sharded.saving

    def told_together(*given: Any) -> sharded.Work[None]:
        os.write(mouth, b"b")
        yield from plain_saving(*given)
        os.write(mouth, b"e")

    def batch(self: Training, step: int) -> list[Batch]:
        os.write(mouth, b"s")
        return plain_batch(self, step)

    Save.write = told(Save.write)  # type: ignore[method-assign]  # beside the steps, in its thread
    sharded.saving = told_together  # type: ignore[assignment]
    Training._batch = batch  # type: ignore[method-assign]
    yield


@contextlib.contextmanager
def _forgetting(control: Control) -> Iterator[None]:
    """A training that forgets one thing when it resumes."""
    if control == "optimiser":
        Optimiser.load = lambda self, saved: None  # type: ignore[method-assign]
    if control == "random":
        plain = counter_rng.number
        counter_rng.number = lambda seed, purpose, *counters: plain(  # type: ignore[assignment]
            seed + (os.getpid() if purpose == "dropout" else 0), purpose, *counters
        )
    if control == "position":
        batch, begun = Training._batch, []

        def from_zero(self: Training, step: int) -> list[Batch]:
            begun.append(step)
            return batch(self, step - begun[0])

        Training._batch = from_zero  # type: ignore[method-assign]
    yield


def fingerprint(run: runs.Run) -> dict[str, str]:
    """Hashes of everything that must be equal at the end."""
    last = checkpoint.all_in(run.checkpoints)[0]
    paths = sorted(last.glob("*.safetensors")) + [run.folder / name for name in COMPARED]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
