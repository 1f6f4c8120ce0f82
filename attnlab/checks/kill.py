"""`attnlab check kill`: a run that is killed again and again ends with the same bits.

A tiny training is run once undisturbed, then many times by processes that are killed (SIGKILL) at
random moments, a third of them inside a save, each going on where the last one left off. Weights,
optimiser and logs must end bitwise equal. Controls, which forget one thing on going on, must not.
"""

import contextlib
import hashlib
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from attnlab import config, counter_rng, stop
from attnlab.checks import Tick
from attnlab.config import setting, settings
from attnlab.data.biographies import Biographies
from attnlab.data.objectives import Questions
from attnlab.models.transformer import TransformerSettings
from attnlab.stop import stoppable
from attnlab.training import checkpoint, runs
from attnlab.training.launch import note_resumed
from attnlab.training.loop import Training, train
from attnlab.training.optim import Muon, Optimiser
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report
from attnlab.training.setup import prepare

Control = Literal["none", "optimiser", "random", "position"]
CONTROLS: tuple[Control, ...] = ("optimiser", "random", "position")
COMPARED = ("model.safetensors", "optimiser.safetensors", "metrics.jsonl", "eval.jsonl")


@settings
class KillCheck:
    kills: int = setting(200, low=1, about="times that a training process is killed")
    steps: int = setting(60, low=1, about="steps of the training")
    save_every: int = setting(3, low=1, about="steps between checkpoints")
    control_kills: int = setting(6, low=1, about="kills for each control, which must differ")
    seed: int = setting(0, about="random seed of the training and of the moments of killing")

    def run(self, tick: Tick) -> dict[str, Any]:
        recipe = tiny_recipe(self)
        with tempfile.TemporaryDirectory(prefix="attnlab-kill-") as place:
            folder = Path(place)
            tick("the undisturbed run")
            with Life(recipe, runs.create(folder, "whole"), "none") as life:
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
        killed = inside = finished = equal = broken = 0

        def counts() -> dict[str, Any]:
            return {
                "kills": killed,
                "kills_inside_a_save": inside,
                "runs": finished,
                "runs_equal": equal,
                "broken_checkpoints": broken,
            }

        with stoppable(lambda: f"{killed} of {kills} kills", counts):
            while killed < kills or finished == 0:
                run = runs.create(folder, f"killed-{control}")
                gone_on = False
                while not run.finished:
                    gone_on |= bool(checkpoint.all_in(run.checkpoints))
                    with Life(recipe, run, control) as life:
                        if killed >= kills and gone_on:
                            life.wait()
                        else:
                            life.kill_at(*self._moment(control, killed, inside * 3 <= killed))
                    killed += life.was_killed
                    inside += life.inside_save
                    # what stands under a checkpoint's name must be whole at every moment
                    there = checkpoint.all_in(run.checkpoints)
                    broken += sum(not checkpoint.is_good(one) for one in there)
                    said = f"{killed} kills, {inside} of them inside a save"
                    tick(f"{said}, {finished} runs finished")
                finished += gone_on  # a run that was never interrupted proves nothing
                equal += gone_on and fingerprint(run) == whole
        return counts()

    def _moment(self, control: str, number: int, saving: bool) -> tuple[bytes, int, float]:
        """When to kill: after so many steps or saves have begun, and a moment more."""
        first, second = counter_rng.uniform(self.seed, f"kill {control}", number, [0, 1])
        if saving:
            return b"b", 1 + int(first * 4), second * 3e-3
        return b"s", int(first * 5 * self.save_every), second * 2e-2


def tiny_recipe(check: KillCheck) -> Recipe:
    """Small, with everything that could be forgotten: dropout, momentum, epochs, evaluations."""
    settings = TransformerSettings(context=64, width=16, depth=2, dropout=0.1, norm_heads=True)
    return Recipe(
        corpus=Biographies(people=14, wordings=1),
        objective=Questions(),
        model=config.override(settings, ["attention.heads=2"]),
        optimiser=Muon(),
        batch=4,
        accumulate=2,
        steps=check.steps,
        save_every=check.save_every,
        evaluate_every=7,
        seed=check.seed,
        device="cpu",
    )


class Life:
    """A process that trains until it ends or is killed; it tells when it is inside a save."""

    def __init__(self, recipe: Recipe, run: runs.Run, control: Control) -> None:
        self.run = run
        self._ears, mouth = os.pipe()
        self._heard = b""
        self._status: int | None = None
        with stop.sparing_children():
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._ears)
                _live(recipe, run, control, mouth)
        os.close(mouth)

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happens here, the process does not outlive it, nor write to its folder."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._ears)

    def wait(self) -> None:
        self._end()
        if self._status != 0:
            raise RuntimeError(f"the training ended with status {self._status}")

    def kill_at(self, word: bytes, number: int, delay: float) -> None:
        """Kill it a little after it has said a word so many times; 0 times: as it begins."""
        while self._heard.count(word) < number and self._hear():
            pass
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._end()

    @property
    def was_killed(self) -> bool:
        return self._status == signal.SIGKILL

    @property
    def inside_save(self) -> bool:
        return self.was_killed and self._heard.count(b"b") > self._heard.count(b"e")

    def _end(self) -> None:
        while self._hear():
            pass
        self._status = os.waitpid(self._pid, 0)[1]
        os.close(self._ears)

    def _hear(self) -> bool:
        """Take in what the process says next; False when it has ended."""
        said = os.read(self._ears, 4096)
        self._heard += said
        return bool(said)


def _live(recipe: Recipe, run: runs.Run, control: Control, mouth: int) -> None:
    """What the process does; it never returns."""
    import torch

    status = 1
    for number in stop.NUMBERS:  # a terminal sends them to this process too, which is not asked
        signal.signal(number, signal.SIG_IGN)
    try:
        torch.set_num_threads(1)
        with _speaking(mouth), _forgetting(control):
            begin = note_resumed(run, Report())
            setup = prepare(recipe, run.folder.parent)
            train(setup, run, World(0, 1, torch.device("cpu")), Report(), begin)
        status = 0
    except BrokenPipeError:  # the check itself was killed
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(status)


@contextlib.contextmanager
def _speaking(mouth: int) -> Iterator[None]:
    """An "s" before each step; a save and what is deleted after it between a "b" and an "e"."""
    plain_write, plain_batch = Training._write, Training._batch

    def write(self: Training, *arguments: Any) -> None:
        os.write(mouth, b"b")
        plain_write(self, *arguments)
        os.write(mouth, b"e")

    def batch(self: Training, step: int) -> Any:
        os.write(mouth, b"s")
        return plain_batch(self, step)

    Training._write = write  # type: ignore[method-assign, assignment]
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

        def from_zero(self: Training, step: int) -> Any:
            begun.append(step)
            return batch(self, step - begun[0])

        Training._batch = from_zero  # type: ignore[method-assign]
    yield


def fingerprint(run: runs.Run) -> dict[str, str]:
    """Hashes of everything that must be equal at the end."""
    last = checkpoint.all_in(run.checkpoints)[0]
    paths = [last / name for name in COMPARED[:2]] + [run.folder / name for name in COMPARED[2:]]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
