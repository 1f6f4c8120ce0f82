"""Steps that feed themselves give the texts of steps that are called one by one."""

import contextlib
import copy
import functools
import weakref

import pytest
import torch

from attnlab import config
from attnlab import generate as generation
from attnlab.generate import Sampling, generate, steps
from attnlab.models import graphs, static_step
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=12, width=16, depth=2, tied=False)
GREEDY = Sampling(temperature=0)
SAMPLED = [
    GREEDY,
    Sampling(seed=4),
    Sampling(seed=7, temperature=0.8, top_k=6),
    Sampling(seed=7, temperature=1.2, top_p=0.9),
]
WORDS = [
    [],
    ["window=3,none", "attention=grouped", "feedforward=swiglu"],
    ["positions=learned"],
    ["positions=alibi", "window=5", "norm_heads=true", "head_gains=true"],
    ["positions=sinusoidal", "sink=learned", "soft_cap=2", "tied=true"],
]
PROMPTS = [[3, 1, 4, 1], [5], [9, 2, 6, 5, 3, 5, 8, 9, 7], [1, 2, 3, 4], list(range(12)), [7] * 20]


@functools.cache
def build(*words, dtype=torch.float64):
    torch.manual_seed(0)
    model = config.override(SMALL, words).build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # far from the start, where everything is flat
    return model.to(dtype)


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Steps feed themselves here too, in buffers of several sizes."""
    monkeypatch.setattr(static_step, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(static_step, "LEAST_KEYS", 16)


def count_loops(monkeypatch):
    made, begin = [], graphs.Loop.begin
    monkeypatch.setattr(
        graphs.Loop, "begin", lambda loop, *given: made.append(loop) or begin(loop, *given)
    )
    return made


@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
@pytest.mark.parametrize("words", WORDS, ids=str)
def test_texts_are_those_of_single_steps(words, sampling, monkeypatch):
    """In float64, so that rounding does not decide."""
    model, options = build(*words), {"tokens": 24, "sampling": sampling}
    want = generate(model, PROMPTS, **options)
    assert len({token for text in want for token in text}) > 2  # there is something to get
    made = count_loops(monkeypatch)
    monkeypatch.setattr(static_step, "DEVICES", ("cpu",))
    monkeypatch.setattr(static_step, "LEAST_KEYS", 16)
    assert generate(model, PROMPTS, **options) == want
    assert len(set(made)) == 1
    monkeypatch.setattr(generation, "DRAWN", 5)
    assert generate(model, PROMPTS[:3], **options) == want[:3]


@pytest.mark.parametrize("words", [[], ["positions=learned"]], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 21])
def test_rows_end_where_they_did(words, tokens, monkeypatch):
    """With learned positions rows are read anew, each in its time, without those that ended."""
    model, options = build(*words), {"tokens": tokens, "sampling": Sampling(seed=3)}
    stops = None, 3, 9
    plain = [generate(model, PROMPTS, stop=stop, **options) for stop in stops]
    assert tokens < 21 or len({len(text) for texts in plain for text in texts}) > 1
    monkeypatch.setattr(static_step, "DEVICES", ("cpu",))
    assert [generate(model, PROMPTS, stop=stop, **options) for stop in stops] == plain


def test_few_steps_are_started_before_tokens_are_read(on_the_cpu, monkeypatch):
    run, started = graphs.Loop._run, []
    monkeypatch.setattr(
        graphs.Loop, "_run", lambda loop, keys: started.append(keys) or run(loop, keys)
    )
    counts = [len(started) for _ in steps(build(), PROMPTS[:2], tokens=8, sampling=GREEDY)]
    ahead = graphs.AHEAD
    assert counts == [0, *(min(n + ahead, 7) for n in range(1, 8))]


def test_log_probabilities_are_those_of_single_steps(on_the_cpu, monkeypatch):
    model, sampling = build("positions=learned"), Sampling(seed=5, top_k=4)
    found = list(steps(model, PROMPTS, tokens=15, sampling=sampling))
    monkeypatch.setattr(static_step, "DEVICES", ())
    want = list(steps(model, PROMPTS, tokens=15, sampling=sampling))
    for one, other in zip(found, want, strict=True):
        assert [picked[:2] for picked in one] == [picked[:2] for picked in other]
        for mine, theirs in zip(one, other, strict=True):
            assert mine.log_probability == pytest.approx(theirs.log_probability, abs=1e-11)


def test_a_text_longer_than_expected_moves_to_larger_buffers(on_the_cpu, monkeypatch):
    model = build("window=5,none")
    want = generate(model, PROMPTS, tokens=60, sampling=GREEDY)
    monkeypatch.setattr(generation, "MOST_EXPECTED", 16)
    grown, grow = [], static_step.StaticStep.grow
    monkeypatch.setattr(
        static_step.StaticStep, "grow", lambda step: grown.append(step.room) or grow(step)
    )
    assert generate(model, PROMPTS, tokens=60, sampling=GREEDY) == want
    assert grown == [32, 64]


def test_a_model_that_has_diverged_says_so(on_the_cpu):
    model = config.override(SMALL, []).build()
    with torch.no_grad():
        model.blocks[1].attention.project.weight[30] = torch.nan
    for sampling in SAMPLED:
        with pytest.raises(ValueError, match=r"logits of row 0 after [45] tokens are"):
            generate(model, [[1, 2, 3, 4]], tokens=30, sampling=sampling)


def test_a_text_that_is_left_leaves_nothing_behind(on_the_cpu, monkeypatch):
    closed, close = [], graphs.Loop.close
    monkeypatch.setattr(graphs.Loop, "close", lambda loop: closed.append(loop) or close(loop))
    taken = steps(build(), PROMPTS, tokens=30)
    next(taken), next(taken)
    taken.close()
    assert len(closed) == 1 and not closed[0].sent and not closed[0].graphs
    kept = weakref.ref(closed.pop())
    del taken
    assert kept() is None  # at once: nothing waits for garbage to be collected


class StandIn:
    """A graph, stream and event for a machine without CUDA: a replay runs the step again."""

    recording = None

    def __init__(self, device=None):
        self.replays = 0

    def capture_begin(self, pool, capture_error_mode):
        StandIn.recording = self

    def capture_end(self):
        StandIn.recording = None

    def replay(self):
        self.replays += 1
        self.step()

    def pool(self):
        return None

    def record(self):
        pass

    wait_stream = synchronize = lambda *given: None


@pytest.fixture
def stand_in(on_the_cpu, monkeypatch):
    """Graphs made on the CPU, for the numbers of places they serve."""
    made, run, make = [], graphs.Loop._run, torch.empty
    whole = graphs.Loop.__init__

    def start(loop, *given):
        whole(loop, *given)
        loop.captures = True

    def run_or_record(loop, keys):
        if StandIn.recording is None:
            run(loop, keys)
        else:
            made.append(keys)
            StandIn.recording.step = lambda: run(loop, keys)

    monkeypatch.setattr(graphs.Loop, "__init__", start)
    monkeypatch.setattr(graphs.Loop, "_run", run_or_record)
    monkeypatch.setattr(graphs, "_side_stream", StandIn)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: make(*size, **how))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda one: one)
    for name in ("CUDAGraph", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, StandIn)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, contextlib.nullcontext)
    return made


@pytest.mark.parametrize("sampling", SAMPLED[:2], ids=str)
@pytest.mark.parametrize("words", WORDS[:3], ids=str)
def test_a_recorded_step_is_run_once_and_then_replayed(words, sampling, stand_in, monkeypatch):
    options = {"tokens": 24, "sampling": sampling}
    for worth, most in ((2, 3), (14, 1), (1000, 0)):
        stand_in.clear()
        monkeypatch.setattr(graphs, "WORTH", worth)
        monkeypatch.setattr(static_step, "DEVICES", ("cpu",))
        found = [generate(build(*words), PROMPTS, stop=stop, **options) for stop in (None, 3)]
        assert len(set(stand_in)) <= most and bool(stand_in) >= (worth == 2)
        monkeypatch.setattr(static_step, "DEVICES", ())
        want = [generate(build(*words), PROMPTS, stop=stop, **options) for stop in (None, 3)]
        assert found == want


def test_graphs_of_buffers_that_moved_are_made_anew(stand_in, monkeypatch):
    monkeypatch.setattr(generation, "MOST_EXPECTED", 16)
    monkeypatch.setattr(graphs, "WORTH", 2)
    loops, left, grow = count_loops(monkeypatch), [], static_step.StaticStep.grow
    monkeypatch.setattr(
        static_step.StaticStep, "grow", lambda step: left.append(len(loops[0].graphs)) or grow(step)
    )
    found = generate(build("window=5,none"), PROMPTS, tokens=60, sampling=GREEDY)
    assert stand_in == [32, 64, 128] and left == [0, 0]
    monkeypatch.setattr(static_step, "DEVICES", ())
    assert found == generate(build("window=5,none"), PROMPTS, tokens=60, sampling=GREEDY)


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
WIDER = ["width=64", "vocabulary=5000", "context=64"]  # kernels of large rows and whole vectors


@functools.cache
def on_cuda(*words, dtype=torch.float64):
    return copy.deepcopy(build(*words, dtype=dtype)).cuda()


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(static_step, "DEVICES", ("cuda",))


@pytest.fixture
def captured(monkeypatch, on_a_gpu):
    """How many graphs were made, here of few steps and for buffers of several sizes."""
    made, capture = [], graphs.Loop._run_and_capture
    monkeypatch.setattr(static_step, "LEAST_KEYS", 16)
    monkeypatch.setattr(graphs, "WORTH", 2)
    monkeypatch.setattr(
        graphs.Loop,
        "_run_and_capture",
        lambda loop, keys: made.append(keys) or capture(loop, keys),
    )
    return made


@cuda
@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
@pytest.mark.parametrize("words", [*WORDS, WIDER], ids=str)
def test_graphs_write_the_texts_of_single_steps(words, sampling, captured, monkeypatch):
    model, options = on_cuda(*words), {"tokens": 60, "sampling": sampling}
    found = [generate(model, PROMPTS, stop=stop, **options) for stop in (None, 3)]
    count = len(captured)
    assert count >= 2
    monkeypatch.setattr(graphs, "WORTH", 1000)  # the same steps, not captured
    assert [generate(model, PROMPTS, stop=stop, **options) for stop in (None, 3)] == found
    monkeypatch.setattr(static_step, "DEVICES", ())
    assert [generate(model, PROMPTS, stop=stop, **options) for stop in (None, 3)] == found
    assert len(captured) == count


@cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sampling", SAMPLED[1:], ids=str)
def test_graphs_compute_what_the_same_steps_compute(dtype, sampling, captured, monkeypatch):
    """Rounding and all: the very same kernels run."""
    model = on_cuda(*WIDER, dtype=dtype)
    found = list(steps(model, PROMPTS, tokens=50, sampling=sampling))
    assert captured
    monkeypatch.setattr(graphs, "WORTH", 1000)
    assert list(steps(model, PROMPTS, tokens=50, sampling=sampling)) == found


@cuda
@pytest.mark.parametrize("words", [[], ["positions=learned"], ["window=3,none"]], ids=str)
def test_greedy_texts_in_graphs_do_not_depend_on_the_batch(words, captured):
    model = on_cuda(*words)
    together = generate(model, PROMPTS, tokens=40, sampling=GREEDY)
    alone = [generate(model, [text], tokens=40, sampling=GREEDY)[0] for text in PROMPTS]
    assert alone == together and captured


@cuda
def test_no_graph_is_made_for_a_few_tokens(on_a_gpu):
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.Loop, "_run_and_capture", lambda *given: made.append(given))
        generate(on_cuda(), PROMPTS, tokens=graphs.WORTH)
    assert not made


@cuda
def test_memory_is_given_back_when_a_text_ends_or_is_left(on_a_gpu):
    model = on_cuda(*WIDER, dtype=torch.float32)
    generate(model, PROMPTS, tokens=30)  # the libraries keep some of the first time
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        generate(model, PROMPTS, tokens=30)
        taken = steps(model, PROMPTS, tokens=60)
        for _ in range(25):
            next(taken)
        taken.close()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@cuda
def test_a_model_on_cuda_that_has_diverged_says_so(captured):
    model = copy.deepcopy(on_cuda(dtype=torch.float32))
    with torch.no_grad():
        model.blocks[1].attention.project.weight[30] = torch.nan
    for sampling in SAMPLED:
        with pytest.raises(ValueError, match=r"logits of row 0 after \d+ tokens are not finite"):
            generate(model, [[1, 2, 3, 4]], tokens=30, sampling=sampling)
