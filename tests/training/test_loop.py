"""The loop: exact on going on, stopped in time, never past a NaN, complete in what it writes."""

import dataclasses
import gc
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from training.recipes import HERE, begin, final_bits, go_on, small, text_recipe

from attnlab.data.batches import Batch
from attnlab.training import checkpoint, loop, runs
from attnlab.training.checkpoint import NotFinite
from attnlab.training.report import Report
from attnlab.training.setup import prepare
from attnlab.training.step import Stepper


def stop_at(monkeypatch, step, what=signal.SIGTERM, where=(Stepper, "take")):
    """The process is sent a signal in the middle of a step (or another method)."""
    owner, name = where
    plain, calls = getattr(owner, name), []

    def patched(self, *args, **kwargs):
        calls.append(1)
        if getattr(self, "state", None) is not None:
            reached = self.state.step == step
        else:
            reached = args and args[0] == step and not getattr(self, "rehearsing", False)
        if reached and calls.count(1) > 5:
            os.kill(os.getpid(), what)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, patched)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bits of runs that nothing interrupted, by the words of their recipes; each made once."""
    made = {}

    def bits(*words):
        if words not in made:
            made[words] = final_bits(begin(tmp_path_factory.mktemp("whole"), small(*words))[0])
        return made[words]

    return bits


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        ([], 7),
        ([], 5),  # where an evaluation is due
        (["accumulate=2"], 6),
        (["optimiser=adamw"], 7),
        (["save_every=none"], 3),
        (["steps=30", "model.dropout=0"], 7 * 2 - 1),  # 14 batches of 4 are 8 epochs of 7, exactly
    ],
)
def test_a_run_that_is_stopped_and_goes_on_ends_with_the_same_bits(
    tmp_path, monkeypatch, whole, words, cut
):
    recipe = small(*words)
    with monkeypatch.context() as patch:
        stop_at(patch, cut)
        broken, result = begin(tmp_path, recipe)
    assert result.ending == "SIGTERM" and result.step == cut + 1
    go_on(broken, recipe, checkpoint.newest_good(broken.checkpoints)[0])
    assert final_bits(broken) == whole(*words)


def test_going_on_twice_within_an_epoch_changes_nothing(tmp_path, monkeypatch):
    recipe = small(steps=20, batch=2)
    whole, _ = begin(tmp_path, recipe)
    run = runs.create(tmp_path, "twice")
    for cut in (2, 4, None):
        with monkeypatch.context() as patch:
            if cut is not None:
                stop_at(patch, cut)
            go_on(run, recipe, checkpoint.newest_good(run.checkpoints)[0])
    assert final_bits(run) == final_bits(whole)


def test_100_steps_are_37_and_63(tmp_path, monkeypatch):
    recipe = small("steps=100", "evaluate_every=25", "save_every=50")
    whole, _ = begin(tmp_path, recipe)
    with monkeypatch.context() as patch:
        stop_at(patch, 36)
        run, result = begin(tmp_path, recipe)
    assert result.step == 37
    go_on(run, recipe, checkpoint.newest_good(run.checkpoints)[0])
    assert final_bits(run) == final_bits(whole)
    assert [row["step"] for row in run.read("metrics")] == list(range(1, 101))


@pytest.mark.parametrize("forgotten", ["optimiser", "position"])
def test_control_forgetting_something_is_noticed(tmp_path, monkeypatch, whole, forgotten):
    recipe, expected = small(), whole()
    with monkeypatch.context() as patch:
        stop_at(patch, 6)
        run, _ = begin(tmp_path, recipe)
    if forgotten == "optimiser":
        monkeypatch.setattr("attnlab.training.optim.Optimiser.load", lambda self, saved: None)
    else:
        plain = loop.Training._batch
        monkeypatch.setattr(loop.Training, "_batch", lambda self, step: plain(self, step - 7))
    go_on(run, recipe, checkpoint.newest_good(run.checkpoints)[0])
    assert final_bits(run) != expected


def test_a_signal_in_an_evaluation_ends_it_and_it_is_done_again_later(tmp_path, monkeypatch, whole):
    recipe = small()
    plain = loop.validation_loss
    with monkeypatch.context() as patch:

        def interrupted(*args, tick, **kwargs):
            os.kill(os.getpid(), signal.SIGINT)
            return plain(*args, tick=tick, **kwargs)

        patch.setattr(loop, "validation_loss", interrupted)
        run, result = begin(tmp_path, recipe)
    assert result.ending == "SIGINT" and result.step == 5 and run.read("eval") == []
    go_on(run, recipe, checkpoint.newest_good(run.checkpoints)[0])
    assert final_bits(run) == whole()


def test_a_signal_in_a_save_lets_the_save_end(tmp_path, monkeypatch):
    plain = checkpoint.save
    with monkeypatch.context() as patch:

        def interrupted(*args):
            os.kill(os.getpid(), signal.SIGTERM)
            return plain(*args)

        patch.setattr(checkpoint, "save", interrupted)
        run, result = begin(tmp_path, small())
    assert result.ending == "SIGTERM"
    for step in (4, result.step):
        assert checkpoint.is_good(run.checkpoints / checkpoint.name_of(step))


def test_handlers_are_as_before_afterwards(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    begin(tmp_path, small(steps=1))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_training_works_outside_the_main_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(begin(tmp_path, small(steps=2))))
    thread.start()
    thread.join()
    assert results[0][1].ending == "finished"


def test_global_randomness_is_left_as_it_was(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    begin(tmp_path, small(steps=2))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("frozen_before", [True, False])
def test_what_was_frozen_stays_frozen_and_nothing_else(tmp_path, frozen_before):
    """The page freezes what it holds; a training inside it must not undo that."""
    was_frozen = bool(gc.get_freeze_count())
    try:
        gc.freeze() if frozen_before else gc.unfreeze()
        begin(tmp_path, small("steps=2"))
        assert bool(gc.get_freeze_count()) == frozen_before
    finally:
        gc.freeze() if was_frozen else gc.unfreeze()


def test_accumulated_parts_give_the_gradient_of_the_whole_batch(tmp_path):
    """Float32 sums in another order: 1e-5 of the loss is far above rounding, far below a bug."""
    losses = []
    for parts in (1, 2, 4):
        run, _ = begin(tmp_path, small(f"accumulate={parts}", "model.dropout=0", "steps=6"))
        losses.append([row["loss"] for row in run.read("metrics")])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)


@pytest.mark.parametrize("poison", ["loss", "gradient", "weight"])
def test_a_nan_stops_before_the_update_and_names_step_and_batch(tmp_path, monkeypatch, poison):
    recipe = small("save_every=2", "evaluate_every=none")
    plain = Stepper._plain_loss
    taken = []

    def poisoned(self, tokens, targets):
        loss = plain(self, tokens, targets)
        taken.append(1)
        if len(taken) == 4 + 6:  # four rehearsals, then the sixth step
            if poison == "loss":
                return loss * torch.nan
            if poison == "gradient":
                loss.register_hook(lambda grad: grad * torch.inf)
            if poison == "weight":
                with torch.no_grad():
                    self.model.embed.weight.fill_(torch.nan)
                return plain(self, tokens, targets)
        return loss

    monkeypatch.setattr(Stepper, "_plain_loss", poisoned)
    run = runs.create(tmp_path, "nan")
    with pytest.raises(NotFinite, match=r"step 6: .* samples \d+, .* of epoch 2") as caught:
        go_on(run, recipe, None)
    assert "step_000004 is kept" in str(caught.value)
    assert [row["step"] for row in run.read("metrics")] == [1, 2, 3, 4, 5]
    newest, broken = checkpoint.newest_good(run.checkpoints)
    assert newest.name == "step_000004" and not broken
    weights = checkpoint.load(newest).model
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_nan_in_the_momentum_is_never_saved(tmp_path, monkeypatch):
    take = Stepper.take

    def poisoned(self, step, parts):
        if step == 5:  # the sixth: the update makes NaN of weights, from a finite gradient
            state = self.optimiser.state()
            largest = max(state.values(), key=torch.Tensor.numel)
            largest.view(-1)[0] = torch.nan
        take(self, step, parts)

    monkeypatch.setattr(Stepper, "take", poisoned)
    run = runs.create(tmp_path, "nan")
    with pytest.raises(NotFinite, match=r"step 6: .* holds NaN or Inf; not saved"):
        go_on(run, small("save_every=2", "evaluate_every=none"), None)
    newest, broken = checkpoint.newest_good(run.checkpoints)
    assert newest.name == "step_000004" and not broken


def test_a_signal_while_sampling_stops_with_a_checkpoint(tmp_path, monkeypatch):
    written = []

    def sampling(model, prompts, *, tokens, sampling, on_token):
        for number in range(tokens):
            written.append(number)
            if number == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            on_token(0, number)
        return [written]

    monkeypatch.setattr(loop, "generate", sampling)
    run, result = begin(tmp_path, small("sample_every=2", "sample_tokens=999"))
    assert (result.ending, result.step) == ("SIGUSR1", 2) and len(written) == 4
    assert checkpoint.newest_good(run.checkpoints)[0].name == "step_000002"
    assert not run.read("samples")


def test_a_signal_while_getting_ready_ends_before_the_first_step(tmp_path, monkeypatch):
    def rehearse(self, parts):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 1)
        pytest.fail("it went on")

    monkeypatch.setattr(Stepper, "rehearse", rehearse)
    run, result = begin(tmp_path, small())
    assert (result.ending, result.step) == ("SIGTERM", 0) and not run.finished


@pytest.mark.parametrize("error", [BrokenPipeError, SystemExit])
def test_a_reader_that_goes_away_stops_with_a_checkpoint(tmp_path, error):
    class Closed(Report):
        def stepped(self, step, loss, rate):
            if step == 3:
                raise error

    run, result = begin(tmp_path, small(), report=Closed())
    assert (result.ending, result.step) == ("SIGPIPE", 3)
    assert checkpoint.newest_good(run.checkpoints)[0].name == "step_000003"


def test_early_stop_after_patience_evaluations_without_a_better_one(tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.1, 2.2, 1.0])
    found = loop.validation_loss

    def scripted(*args, **kwargs):
        result = found(*args, **kwargs)
        return dataclasses.replace(result, loss=next(losses))

    monkeypatch.setattr(loop, "validation_loss", scripted)
    run, result = begin(tmp_path, small("evaluate_every=2", "patience=3", "steps=50"))
    assert (result.ending, result.step, result.best_step) == ("stopped early", 10, 4)
    assert (run.checkpoints / "step_000004").exists(), "the best is kept"
    assert run.finished


def test_the_best_checkpoint_and_the_newest_are_kept(tmp_path):
    run, result = begin(tmp_path, small("save_every=1", "keep=2", "steps=11", "evaluate_every=3"))
    kept = {checkpoint.step_of(folder) for folder in checkpoint.all_in(run.checkpoints)}
    assert kept == {10, 11, result.best_step}


def test_the_best_is_found_when_it_is_the_last_and_a_save_is_due_there(tmp_path):
    """The last step is evaluated too, and what is saved there knows it."""
    run, result = begin(tmp_path, small("save_every=4", "steps=12", "evaluate_every=5"))
    assert result.best_step == 12, "this recipe is best at its end"
    assert checkpoint.load(run.checkpoints / "step_000012").state["best_step"] == 12
    assert runs.open_checkpoint(str(run.folder), tmp_path, best=True)[0].name == "step_000012"


def test_seconds_in_steps_leave_out_evaluations(tmp_path, monkeypatch):
    plain = loop.validation_loss

    def slow(*args, **kwargs):
        time.sleep(0.5)
        return plain(*args, **kwargs)

    monkeypatch.setattr(loop, "validation_loss", slow)
    run, result = begin(tmp_path, small("steps=4", "evaluate_every=2"))
    first, second = run.read("speed")
    assert first["seconds"] - first["step_seconds"] >= 0.5
    assert second["seconds"] - second["step_seconds"] >= 1
    assert result.seconds - result.step_seconds >= 1


def test_samples_are_written_and_change_nothing(tmp_path, whole):
    run, _ = begin(tmp_path, small("sample_every=6", "sample_tokens=9"))
    assert [row["step"] for row in run.read("samples")] == [6, 12]
    assert all(len(row["text"]) == 9 for row in run.read("samples"))
    assert final_bits(run) == whole()


def test_the_opening_says_parameters_tokens_operations_and_time(tmp_path):
    openings = []

    class Listening(Report):
        def training(self, opening, step, tokens_per_step):
            openings.append(opening)
            return super().training(opening, step, tokens_per_step)

    run, _ = begin(tmp_path, small(), report=Listening())
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["parameters"] == openings[0].parameters > 0
    assert manifest["tokens"] == 12 * 4 * 64
    assert manifest["flops"] > 6 * 12 * 4 * 64 * 1000
    assert manifest["expected_seconds"] > 0
    each = manifest["flops"] / manifest["tokens"]
    for row in run.read("speed"):
        assert row["utilisation"] * manifest["matrix_rate"] == pytest.approx(
            each * row["tokens_per_second"]
        )
    assert any(":" in reason for reason in manifest["kernels"]), "paths and why"


def test_another_text_under_a_run_is_refused(tmp_path):
    run, _ = begin(tmp_path, small(steps=2))
    other = small("corpus.people=15", "steps=4")
    with pytest.raises(ValueError, match="text has changed"):
        go_on(run, other, checkpoint.newest_good(run.checkpoints)[0])


def test_two_processes_cannot_train_in_one_run(tmp_path):
    run, _ = begin(tmp_path, small(steps=1))
    with run.locked(), pytest.raises(ValueError, match="another process"):
        go_on(run, small(steps=2), None)
    assert not run.busy


def test_finetuning_begins_with_the_weights_and_tokenizer_of_another_run(tmp_path):
    first, _ = begin(tmp_path, small("objective=span-corruption", "steps=3", "save_every=3"))
    start = f"start={first.folder}"
    run, _ = begin(tmp_path, small(start, "steps=1", "optimiser.rate=0", "optimiser.rest_rate=0"))
    before = checkpoint.load(checkpoint.all_in(first.checkpoints)[0])
    after = checkpoint.load(checkpoint.all_in(run.checkpoints)[0])
    assert all(torch.equal(before.model[name], after.model[name]) for name in before.model)
    assert before.tokenizer == after.tokenizer


@pytest.fixture(scope="module")
def first_step(tmp_path_factory):
    return begin(tmp_path_factory.mktemp("first"), small("steps=1"))[0]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.width=32", "model.width is 16 in the checkpoint and 32 here"),
        ("model.positions=none", "model.positions.name is rotary in the checkpoint and none here"),
        ("model.positions.base=500", "model.positions.base"),
        ("model.depth=1", "model.depth is 2 in the checkpoint and 1 here"),
    ],
)
def test_finetuning_another_architecture_is_refused_with_the_difference(
    tmp_path, first_step, word, message
):
    with pytest.raises(ValueError, match=message):
        begin(tmp_path, small(f"start={first_step.folder}", word))


def test_an_asynchronous_step_skips_every_update_after_a_nan(tmp_path):
    """What a GPU does, where the loss is looked at later: the flag alone must hold the update."""
    setup = prepare(small("model.dropout=0"), tmp_path)
    optimiser = setup.recipe.optimiser.build(setup.model)
    stepper = Stepper(setup.model, optimiser, setup.recipe, HERE)
    stepper.asynchronous = True
    flag = stepper._halted
    optimiser.skip_when(flag)
    batch = Batch(torch.randint(5, (2, 9)), torch.randint(5, (2, 9)))
    stepper.take(0, [batch])
    before = [p.detach().clone() for p in setup.model.parameters()]
    state = {name: tensor.clone() for name, tensor in optimiser.state().items()}
    plain = stepper._plain_loss
    stepper._plain_loss = lambda *args: plain(*args) * torch.nan
    stepper.take(1, [batch])
    stepper._plain_loss = plain
    stepper.take(2, [batch])
    finite = [outcome.finite for outcome in stepper.outcomes()]
    assert finite == [True, False, False]
    assert all(torch.equal(p, b) for p, b in zip(setup.model.parameters(), before, strict=True))
    after = optimiser.state()
    assert all(torch.equal(state[name], after[name]) for name in state if "momentum" in name)


@pytest.mark.parametrize("step", [10**30, -4, 3])
def test_a_state_of_another_step_than_the_checkpoints_is_refused(tmp_path, step):
    """A checkpoint made by someone who knows the format: valid hashes, an absurd state."""
    run, _ = begin(tmp_path, small("steps=4"))
    folder = run.checkpoints / "step_000004"
    kept = checkpoint.load(folder)
    kept.state["step"] = step
    checkpoint.discard(folder)
    checkpoint.save(run.checkpoints, 4, kept)
    with pytest.raises(ValueError, match=r"cannot resume from .* it holds a state of step"):
        go_on(run, small("steps=9"), folder)


def test_answers_are_counted_where_there_are_questions(tmp_path):
    run, _ = begin(tmp_path, small())
    assert all(0 <= row["accuracy"] <= 1 for row in run.read("eval"))
    (tmp_path / "text.txt").write_text("abcab " * 200)
    run, _ = begin(tmp_path, text_recipe(tmp_path / "text.txt"))
    assert not any("accuracy" in row for row in run.read("eval"))


def test_the_best_is_saved_unless_that_is_turned_off(tmp_path):
    """Evaluated at every step and saved at none: only the best, if at all, and the last are."""
    steps = {}
    for best in (True, False):
        recipe = small(evaluate_every=1, save_every=None, save_best=best, keep=100)
        run, result = begin(tmp_path, recipe)
        steps[best] = [checkpoint.step_of(path) for path in checkpoint.all_in(run.checkpoints)]
    assert steps[False] == [12]
    assert len(steps[True]) > 1 and result.best_step in steps[True]
