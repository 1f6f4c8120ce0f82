"""THE loop, for pretraining and finetuning alike, read from top to bottom.

    batch(seed, step) → step → log;  now and then: evaluate, save, write a sample

All that a run remembers is weights, the optimiser's state and a small State (state.py). Batches,
schedule and random streams are functions of the step, so a run that is stopped or killed resumes to
the same bits.
"""

import dataclasses
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attnlab import config, counter_rng, files, json_files
from attnlab.data.batches import Batch
from attnlab.evaluate import Evaluation, validation_loss
from attnlab.generate import Sampling, generate
from attnlab.kernels import dispatch, hardware
from attnlab.stop import StopNow, Stopping, stopping
from attnlab.training import checkpoint, logs, parallel, runs, sharded
from attnlab.training.ahead import Ahead
from attnlab.training.average import Average
from attnlab.training.checkpoint import Checkpoint, NotFinite
from attnlab.training.lock import FolderGone, Lock
from attnlab.training.parallel import World
from attnlab.training.report import Attended, Opening, Report
from attnlab.training.resume import Resumed
from attnlab.training.setup import Setup, evaluated_together
from attnlab.training.shard_writer import ShardWriter
from attnlab.training.state import Clock, State
from attnlab.training.step import Stepper, all_parts, no_garbage_walks, what_broke
from attnlab.training.text import recorded, refuse_other_text
from attnlab.training.weights import put_rows
from attnlab.training.writer import Save, Writer

BUNCH = 50  # steps whose losses a GPU hands over together


@dataclass(frozen=True)
class Result:
    ending: str  # "finished", "stopped early", or the signal it was stopped by
    step: int
    loss: float | None
    best_loss: float | None
    best_step: int | None
    seconds: float
    step_seconds: float

    @property
    def begun(self) -> bool:
        """Whether there is a step to go on from: it was not stopped before the first one."""
        return self.step > 0 or not self.ending.startswith("SIG")


def train(
    setup: Setup, run: runs.Run, world: World, report: Report, resume: Path | None = None
) -> Result:
    """Train in a run folder, from the beginning or from one of its checkpoints."""
    with stopping() as stop, run.locked() if world.first else nullcontext() as lock:
        attended = Attended(report, stop)
        training = Training(setup, run, world, attended, stop, lock)
        try:
            result = training.go(resume)
        except KeyboardInterrupt as error:  # a second signal: the step that runs does not end
            newest = next(iter(checkpoint.all_in(run.checkpoints)), None)
            kept = f"; to go on from {newest.name}: --resume {run.folder}" if newest else ""
            error.add_note(f"within a step, so that step is lost{kept}")
            raise
        if attended.lost is not None:
            saved = f"step {result.step} is saved" if result.step else "nothing was saved yet"
            raise OSError(
                attended.lost.errno,
                f"what a training prints could not be written: {attended.lost.strerror}; it has "
                f"stopped, {saved}. To go on: --resume {run.folder}",
            )
        return result


class Training:
    def __init__(
        self,
        setup: Setup,
        run: runs.Run,
        world: World,
        report: Report,
        stop: Stopping,
        lock: Lock | None = None,
    ) -> None:
        self.recipe, self.source, self.model = setup.recipe, setup.source, setup.model
        self.dtype: torch.dtype = getattr(torch, setup.recipe.dtype)
        self.corpus, self.tokenizer, self.start = setup.corpus, setup.tokenizer, setup.start
        self.rows = setup.rows
        self.run, self.world, self.report, self.stop = run, world, report, stop
        self.lock, self.gone = lock, ""
        self.began = 0  # the step it began or resumed at
        self.described: dict[str, bytes] = {}  # files of the folder for people, by their names
        self.state = State()
        self.average: Average | None = None
        self._ahead: Ahead | None = None
        self.together = parallel.cut_for(self.recipe, world) is not None  # each saves its shard
        background = world.size == 1  # else others wait for the first one, which alone writes
        self.writer = ShardWriter(world) if self.together else Writer(background=background)

    def go(self, resume: Path | None) -> Result:
        recipe, world = self.recipe, self.world
        hardware.require(self.dtype, world.device)
        try:
            with self.stop.at_once():  # compiling takes long, and nothing has been done yet
                self._prepare(resume)
                opening = self._rehearsal()
                self._leave_what_comes_later()
        except StopNow:
            self.clock = Clock(self.state.seconds, self.state.step_seconds)
            return self._end(signal.Signals(self.stop.signal).name)
        self.clock = Clock(self.state.seconds, self.state.step_seconds)
        self.opening = opening
        with self.report.training(opening, self.state.step, recipe.batch * recipe.length):
            with torch.random.fork_rng(devices=self._cuda()), no_garbage_walks():
                with self._making_ahead() as self._ahead, self.writer:
                    return self._steps()

    def _steps(self) -> Result:
        recipe, state = self.recipe, self.state
        while True:
            self._saves(self.writer.check)
            ending = self._between_steps()
            if ending is not None:
                with self.clock.aside():
                    self._saves(self.writer.wait)
                return self._end(ending)
            self.stepper.take(state.step, self._batch(state.step))
            state.step += 1
            self.world.reached(state.step)
            if self.average is not None:
                self.average.follow(state.step)
            if not self.stepper.asynchronous or state.step % BUNCH == 0:
                self._log()
            if due(recipe.save_every, state.step) and not self._evaluation_due():
                self._log()
                self._save()

    def _between_steps(self) -> str | None:
        """Evaluate, sample, save; and whether this is the end."""
        recipe, state = self.recipe, self.state
        last = state.step >= recipe.steps
        received = self.world.all_reduce_max(self.stop.signal)
        if not received and self._evaluation_due() and state.evaluated != state.step:
            self._log()
            try:
                with self.clock.aside(), self._weights_to_use():
                    self._evaluate()
            except StopNow:
                received = self.world.all_reduce_max(self.stop.signal)
            wanted = last or due(recipe.save_every, state.step)
            best = recipe.save_best and state.best_step == state.step
            if not received and (wanted or best):
                self._save(due=wanted)
        if not received and due(recipe.sample_every, state.step):
            with self.clock.aside(), self._weights_to_use(), suppress(StopNow):
                self._sample()
            received = self.world.all_reduce_max(self.stop.signal)
        if received:
            self._log()
            if state.step > 0:
                self._save(stops=True)
            return signal.Signals(received).name
        if last:
            return "finished"
        if recipe.patience is not None and state.worse >= recipe.patience:
            return "stopped early"
        return None

    def _evaluation_due(self) -> bool:
        step, recipe = self.state.step, self.recipe
        return due(recipe.evaluate_every, step) or 0 < step >= recipe.steps

    def _refuse_other_text(self) -> None:
        refuse_other_text(self.corpus, recorded(self.run, self.state), self.run.folder)
        self.state.corpus = self.corpus.fingerprint

    def _prepare(self, resume: Path | None) -> None:
        recipe, world = self.recipe, self.world
        resumed = None if resume is None else Resumed(resume, recipe, world)
        if resumed is not None:
            self.state = resumed.state
        self._refuse_other_text()
        if resumed is not None:
            resumed.put_weights(self.model)
        if not self.rows:
            self.model.to(world.device)
        spread = parallel.spread(self.model, recipe, world)
        put_rows(self.model, self.rows, world.device)
        self.rows = {}
        self.optimiser = recipe.optimiser.build(self.model)
        self.stepper = Stepper(self.model, self.optimiser, recipe, world)
        self.stepper.spread = spread
        if resumed is not None:
            resumed.put_rows(self.model, self.optimiser)
        if recipe.average is not None:
            self.average = Average(self.model, recipe.average)
        if resumed is not None:
            resumed.put_rest(self.optimiser, self.average)
        if world.first:
            files.make_folder(self.run.checkpoints)
            checkpoint.sweep(self.run.checkpoints)
            for said in self.run.complaints():
                self.report.note(said)

    def _leave_what_comes_later(self) -> None:
        """What another training from here has left: its checkpoints, log lines and result.

        Right before the first step: until then, what is refused or fails leaves all of it.
        """
        self.began = done = self.state.step
        if not self.world.first:
            return
        for folder in checkpoint.set_aside(self.run.checkpoints, done):
            self.report.note(f"a later step of another training is set aside: {folder}")
        # a sample due at this very step is written again
        self.run.cut_logs({"metrics": done, "eval": self.state.evaluated, "samples": done - 1})
        if self.run.finished and self.run.result()["step"] > done:
            self.run.forget_result()

    def _rehearsal(self) -> Opening:
        recipe, world = self.recipe, self.world
        with torch.random.fork_rng(devices=self._cuda()):
            parts = self._batch(self.state.step)
            with dispatch.record_choices() as choices, torch.no_grad():
                first = parts[0].changed(lambda tensor: tensor[:1].to(world.device))
                self.model(first.tokens, **first.options)
            ready, step_seconds = self.stepper.rehearse(parts)
        opening = Opening.of(
            self.model,
            self.source,
            recipe,
            run=str(self.run.folder),
            step=self.state.step,
            ready=ready,
            step_seconds=step_seconds,
            matrix_rate=world.size * hardware.matrix_rate(world.device, self.dtype),
        )
        if world.first:
            manifest = {
                **parallel.facts(world),
                **dataclasses.asdict(opening),
                "corpus": self.corpus.fingerprint,
                **({"start": self.start} if self.start else {}),
                "kernels": sorted({f"{choice.path}: {choice.reason}" for choice in choices}),
            }
            self.described = {
                "config.json": json_files.as_json(config.to_dict(recipe)),
                "manifest.json": json_files.as_json(manifest),
                "tokenizer.json": json_files.as_json(self.tokenizer.to_json()),
            }
            self._describe()
        return opening

    def _describe(self) -> None:
        for name, content in self.described.items():
            files.write_whole(self.run.folder / name, content)

    def _batch(self, step: int) -> list[Batch]:
        return self._ahead.batch(step) if self._ahead else self._made(step)

    def _made(self, step: int) -> list[Batch]:
        return all_parts(self.source, self.recipe, self.world, step)

    def _making_ahead(self) -> AbstractContextManager[Ahead | None]:
        """Where batches are read from files; those in memory take less than to wake a thread."""
        if self.corpus.tokenizer is None:
            return nullcontext()
        return closing(Ahead(self._made, self.recipe.steps, self.world.device))

    def _log(self) -> None:
        """Write the losses that are there; stop if one of them is not a number."""
        outcomes = self.stepper.outcomes()
        first = self.state.step - len(outcomes)
        rows: list[dict[str, float]] = []
        for step, outcome in enumerate(outcomes, start=first + 1):
            if not outcome.finite:
                self._append("metrics", rows)
                raise self._not_finite(what_broke(self.source, self.recipe, step, outcome))
            rows.append({"step": step, "loss": outcome.loss, "norm": outcome.norm})
        self._append("metrics", rows)
        if outcomes:
            factor = self.recipe.schedule.factor(self.state.step, self.recipe.steps)
            self.report.stepped(self.state.step, outcomes[-1].loss, factor)

    def _not_finite(self, what: str) -> NotFinite:
        """The error to raise, once what was saved before is on the disk."""
        failed = ""
        try:
            self._saves(self.writer.wait)
        except OSError as error:
            failed = f"; {error}"
        newest = next(iter(checkpoint.all_in(self.run.checkpoints)), None)
        return NotFinite(what + (f"; {newest.name} is kept" if newest else "") + failed)

    def _evaluate(self) -> None:
        state, recipe = self.state, self.recipe
        if self.source.validation_count == 0:
            state.evaluated = state.step
            return
        in_steps = self.clock.step_seconds  # before the evaluation, whose seconds are no step's
        found = self._validation_loss(recipe.evaluated_rows)
        if not np.isfinite(found.loss):
            raise self._not_finite(f"step {state.step}: the validation loss is {found.loss}")
        state.evaluated = state.step
        better = state.best_loss is None or found.loss < state.best_loss
        if better:
            state.best_loss, state.best_step, state.worse = found.loss, state.step, 0
        else:
            state.worse += 1
        row: dict[str, float] = {
            "step": state.step,
            "loss": found.loss,
            "tokens": found.tokens,
            "best": better,
        }
        last, rows = state.step >= recipe.steps, recipe.evaluated_rows
        if last and recipe.evaluate_whole:
            part = rows is not None and rows < self.source.validation_count
            row["whole"] = self._validation_loss(None).loss if part else found.loss
        accuracy = found.exact if self.source.answers else None
        if accuracy is not None:
            row["accuracy"] = accuracy
        self._append("eval", [row])
        self._append("speed", [self.opening.speed(state.step, self.clock.seconds, in_steps)])
        self.report.evaluated(state.step, found.loss, better, self.clock.seconds, accuracy)
        self.report.measured(state.step, found)

    def _validation_loss(self, rows: int | None) -> Evaluation:
        """Of so many samples of validation, always the same; None: of all."""
        recipe = self.recipe
        half = torch.bfloat16 if recipe.dtype == "bfloat16" else None
        size = evaluated_together(recipe, self.world.device)
        count = self.source.validation_count if rows is None else rows
        tokens = min(count, self.source.validation_count) * recipe.length
        with self.report.waiting("evaluating", tokens) as advance:
            return validation_loss(
                self.model,
                self.source.validation(size, rows),
                device=self.world.device,
                autocast=half,
                tick=self._interruptible(advance),
            )

    def _interruptible(self, advance: Callable[[int], None]) -> Callable[[int], None]:
        def tick(done: int) -> None:
            if self.world.all_reduce_max(self.stop.signal):
                raise StopNow
            advance(done)

        return tick

    def _sample(self) -> None:
        """Text as the model writes it now, from a beginning the training text has."""
        recipe, world = self.recipe, self.world
        together = parallel.cut_for(recipe, world) is not None  # weights are gathered as needed
        if not world.first and not together:
            return
        prompt = self._made(0)[0].tokens[0, : min(16, recipe.length)].tolist()
        sampling = Sampling(
            temperature=0.8, seed=counter_rng.number(recipe.seed, "text", self.state.step)
        )

        def on_token(row: int, token: int) -> None:
            if world.all_reduce_max(self.stop.signal) if together else self.stop.signal:
                raise StopNow

        new = generate(
            self.model, [prompt], tokens=recipe.sample_tokens, sampling=sampling, on_token=on_token
        )[0]
        before, text = self.tokenizer.decode(prompt), self.tokenizer.decode(new)
        self._append("samples", [{"step": self.state.step, "prompt": before, "text": text}])
        self.report.sampled(self.state.step, before, text)

    def _save(self, *, due: bool = True, stops: bool = False) -> None:
        with self.clock.aside():
            self._write(due, stops)

    def _saves(self, ask: Callable[[], None]) -> None:
        """Ask the writer; what it could not write where the folder was, it writes where it is."""
        before = self.run
        try:
            ask()
        except OSError:
            now = self._folder_now()
            if not self.writer.again(now) and (self.together or now == before):
                raise
            ask()

    def _weights_to_use(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_place()

    def _write(self, due: bool, stops: bool) -> None:
        """Every process writes its shards; where all have the same weights, the first does."""
        state, world = self.state, self.world
        state.seconds, state.step_seconds = self.clock.seconds, self.clock.step_seconds
        weights = {name: one.detach() for name, one in self.model.named_parameters()}
        averages = {} if self.average is None else self.average.state()
        kept = Checkpoint(
            model=weights | self.stepper.running_buffers(),
            optimiser=self.optimiser.state() | averages,
            config=config.to_dict(self.recipe),
            tokenizer=self.tokenizer.to_json(),
            state=dataclasses.asdict(state),
        )
        if world.first or self.together:
            self._saves(lambda: self.writer.put(self._save_of(kept, due, stops)))

    def _save_of(self, kept: Checkpoint, due: bool, stops: bool) -> Save:
        return Save(
            run=self._folder_now(),
            kept=kept,
            keep=self.recipe.keep,
            due=due,
            stops=stops,
            later=self.state.step > self.began,
            lock=None if self.gone else self.lock,
        )

    def _folder_now(self) -> runs.Run:
        """Only the first process knows whether it was moved."""
        if not self.together:
            self._find_folder()
            return self.run

        def found() -> str:
            self._find_folder()
            return str(self.run.folder)

        return runs.Run(Path(sharded.of_first(self.world, found)))

    def _end(self, ending: str) -> Result:
        state = self.state
        rows = self.run.read("metrics") if self.world.first else []
        rows = [row for row in rows if row["step"] <= state.step]
        result = Result(
            ending=ending,
            step=state.step,
            loss=rows[-1]["loss"] if rows else None,
            best_loss=state.best_loss,
            best_step=state.best_step,
            seconds=self.clock.seconds,
            step_seconds=self.clock.step_seconds,
        )
        if self.world.first and ending in ("finished", "stopped early"):
            content = json_files.as_json(dataclasses.asdict(result))
            files.write_whole(self.run.folder / "result.json", content)
        if self.gone:
            there = f"step {state.step} is saved there" if state.step else "nothing was saved yet"
            raise FolderGone(f"{self.gone}; {there}. To go on: --resume {self.run.folder}")
        return result

    def _append(self, name: str, rows: Sequence[Mapping[str, float | str]]) -> None:
        if not rows or not self.world.first:
            return
        content = b"".join(map(logs.line, rows))
        self._find_folder()
        try:
            files.append(self.run.log(name), content)
        except FileNotFoundError:  # removed since we looked
            self._find_folder()
            files.append(self.run.log(name), content)

    def _find_folder(self) -> None:
        """Notice that a person has moved or removed the folder, and save what there is elsewhere.

        Hours of work may be in this process alone, so they are saved before it stops: where the
        folder is now, or, if it was removed, in a new one beside it, which is removed as easily.
        The old name is not made again: `rm -r` may still be at work there, and half a folder looks
        like a run. Training stops, since whoever moved it knows nothing of a process that goes on.
        """
        if self.gone or self.lock is None or self.lock.in_place():
            return
        before, moved = self.run.folder, self.lock.moved_to()
        self.run = runs.Run(moved or runs.free_name(before, runs.RESCUED))
        self.stop.signal = self.stop.signal or signal.SIGHUP
        self.report = Report()  # which may write in the old folder
        if moved is not None:
            self.gone = f"{before} was moved to {moved} during the training, which has stopped"
        else:
            files.make_folder(self.run.checkpoints)
            self._describe()
            gone, new = self.lock.what_is_gone(), self.run.folder
            self.gone = f"{gone} during the training, which has stopped: {new} is new"

    def _cuda(self) -> list[torch.device]:
        return [self.world.device] if self.world.device.type == "cuda" else []


def due(every: int | None, step: int) -> bool:
    return every is not None and step > 0 and step % every == 0
