"""The benchmark of generation: two models that are the same function, timed in turns."""

import dataclasses
import io
import json

import pytest
import torch
from rich.console import Console

from attnlab.bench import generate as bench
from attnlab.bench.generate import GREEDY, OURS, PEER, GenerateBench

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers.*")
SMALL = GenerateBench(
    device="cpu",
    width=16,
    depth=2,
    heads=2,
    vocabulary=11,
    batch=(1, 3),
    prompt=5,
    tokens=6,
    rounds=2,
    threads=1,
)


@pytest.fixture
def llama():
    pytest.importorskip("transformers", reason="pip install 'attnlab[hf]'")


def shown(report):
    screen = Console(file=io.StringIO(), width=100)
    SMALL.show(report, screen)
    return screen.file.getvalue()


def test_a_small_run_reports_every_batch(llama):
    before = torch.get_num_threads()
    report = SMALL.run()
    assert torch.get_num_threads() == before
    assert [(row["batch"], row["name"]) for row in report["rows"]] == [
        (batch, name) for batch in (1, 3) for name in (OURS, GREEDY, PEER)
    ]
    assert SMALL.passed(json.loads(json.dumps(report))) and not report["left_out"]
    for row in report["rows"]:
        assert row["tokens_per_second"] > 0 and len(row["seconds"]) == 2
        assert (row["speedup"] is None) == (row["name"] == OURS)
    assert shown(report).count("transformers") == 2


@pytest.mark.parametrize("words", [{}, {"kv_heads": 1, "tied": True}], ids=str)
def test_both_are_the_same_function(llama, words):
    pair = dataclasses.replace(SMALL, **words)._pair({}, torch.device("cpu"), torch.float32)
    tokens = torch.randint(11, (3, 9))
    with torch.no_grad():
        ours, theirs = pair.ours.double()(tokens), pair.theirs.double()(tokens).logits
    # in every dtype transformers computes norms and angles in float32
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    pair.ours.float(), pair.theirs.float()
    assert pair.differ(tokens, 12) is None
    assert all(weight.dtype == torch.float32 for weight in pair.theirs.parameters())


def test_texts_may_part_where_two_tokens_are_as_likely(llama, monkeypatch):
    pair = SMALL._pair({}, torch.device("cpu"), torch.float32)
    tokens = torch.randint(11, (2, 5))
    with torch.no_grad():  # twins: one model prefers the first by a little, one the second
        for head, part in ((pair.ours.head, 1 - 1e-6), (pair.theirs.lm_head, 1 + 1e-6)):
            head.weight[1::2] = head.weight[:-1:2] * part
    mine = bench.generate(pair.ours, tokens.tolist(), tokens=12, sampling=bench.EXACTLY)
    assert pair.write(tokens, 12, sample=False) != mine
    assert pair.differ(tokens, 12) is None
    monkeypatch.setattr(bench, "TIE", 1e-7)
    assert "greedy texts part in row" in pair.differ(tokens, 12)


def test_half_precisions_have_the_same_weights_and_angles_in_full(llama):
    pair = SMALL._pair({}, torch.device("cpu"), torch.bfloat16)
    for model in (pair.ours, pair.theirs):
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {one.dtype for one in pair.theirs.buffers()} == {torch.float32}
    tokens = torch.randint(11, (3, 9))
    assert pair.differ(tokens, 12) is None
    assert {weight.dtype for weight in pair.theirs.parameters()} == {torch.bfloat16}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="PyTorch finds no CUDA device here; use device=cpu"):
        dataclasses.replace(SMALL, device="cuda").run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_small_run_on_cuda_reports_every_batch(llama):
    report = dataclasses.replace(SMALL, device="cuda").run()
    assert SMALL.passed(report) and len(report["rows"]) == 6


def test_texts_that_part_are_named_and_not_timed(llama, monkeypatch):
    plain = bench.llama_of

    def off(model):
        llama = plain(model)
        with torch.no_grad():
            llama.lm_head.weight[3] += 1
        return llama

    monkeypatch.setattr(bench, "llama_of", off)
    report = SMALL.run()
    assert [row["name"] for row in report["rows"]] == [PEER, PEER]
    assert all("greedy texts part in row" in row["wrong"] for row in report["rows"])
    assert not SMALL.passed(report) and shown(report).count("wrong: greedy texts part") == 2


def test_a_peer_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    report = dataclasses.replace(SMALL, batch=(2,), memory=False).run()
    assert [row["name"] for row in report["rows"]] == [OURS, GREEDY]
    assert SMALL.passed(report)
    assert "transformers is left out: this peer needs transformers: pip install" in shown(report)


def test_what_cannot_be_compiled_is_left_out_with_the_reason(llama, monkeypatch):
    def fail(device):
        raise RuntimeError("no such mode\nat line 3")

    monkeypatch.setattr(bench, "_compiler", fail)
    report = dataclasses.replace(SMALL, batch=(1,), static=True, memory=False).run()
    assert len(report["rows"]) == 3
    assert report["left_out"] == [
        {"name": bench.STATIC, "reason": "it failed: no such mode"},
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 18, "heads": 4}, "width is 18; use a multiple of 2 · heads = 8"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads is 3; it must divide heads = 4"),
        ({"clock": "processor", "device": "cuda"}, "it does not count what a GPU does; use"),
    ],
)
def test_nonsense_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GenerateBench(**wrong)
