"""Texts and answers: the page sends what the model writes, within bounds, until it is stopped."""

import shutil
import time

import pytest
import states
from page.pages import client, events, folder, name_of, post, serving

from attnlab.data.corpora import Question
from attnlab.evaluate import answer_questions
from attnlab.generate import Sampling, generate, precise
from attnlab.interop.importing import import_folder
from attnlab.page import generation
from attnlab.page.generation import OpenModels
from attnlab.page.inspection import ModelInput
from attnlab.page.runs import Runs


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def models():
    return OpenModels(Runs(folder()))


@pytest.fixture(scope="module")
def opened(server):
    with client(server) as one:
        yield one


def test_an_imported_model_is_looked_at_and_writes(tmp_path):
    """A folder of transformers is on the page once it is a run."""
    states.readable(tmp_path / "llama")
    made = import_folder(tmp_path / "llama", tmp_path / "runs", prove=False)
    runs = Runs(tmp_path / "runs")
    (row,) = runs.list_all()
    assert row["name"] == made.run.folder.name and row["writable"]
    models = OpenModels(runs)
    assert ModelInput.of_run(models, row["name"], "the fox").tokens == list("the fox")
    asked = {"run": row["name"], "prompt": "the ", "tokens": 5}
    *_, last = generation.prepare(models, asked)
    assert last["done"] and last["tokens"] == 5


def test_the_stream_is_what_the_model_generates(opened, models):
    name = name_of("text-")
    asked = {"run": name, "prompt": "The ", "tokens": 25, "temperature": 0.7, "top_k": 5, "seed": 3}
    with opened.stream("POST", "/api/generate", json=asked) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *pieces, last = events(answer)
    saved = models.take(name)
    ids = saved.tokenizer.encode("The ").tolist()
    sampling = Sampling(temperature=0.7, top_k=5, seed=3)
    wanted = generate(saved.model, [ids], tokens=25, sampling=sampling)[0]
    assert "".join(one["text"] for one in pieces) == saved.tokenizer.decode(wanted)
    assert last["done"] and last["tokens"] == 25 and last["tokens_per_second"] > 0


def test_who_goes_away_stops_the_generation(server, monkeypatch):
    taken, closed = [], []
    original = generation.steps

    def slow(*given, **how):
        try:
            for step in original(*given, **how):
                time.sleep(0.02)
                taken.append(1)
                yield step
        finally:
            closed.append(1)

    monkeypatch.setattr(generation, "steps", slow)
    asked = {"run": name_of("text-"), "prompt": "The ", "tokens": 512}
    with client(server) as one, one.stream("POST", "/api/generate", json=asked) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 100
    while not closed and time.monotonic() < deadline:
        time.sleep(0.02)
    assert closed and len(taken) < 400


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"tokens": 513}, 400),
        ({"tokens": 0}, 400),
        ({"tokens": 2.5}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": "x" * 2001}, 400),
        ({"prompt": "☃"}, 400),
        ({"temperature": -1}, 400),
        ({"temperature": 5.5}, 400),
        ({"temperature": True}, 400),
        ({"top_k": 0}, 400),
        ({"seed": -1}, 400),
        ({"run": "../runs"}, 404),
        ({"run": None}, 400),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_written(opened, models, change, status):
    asked = {"run": name_of("text-"), "prompt": "The ", "tokens": 2, **change}
    found = post(opened, "/api/generate", **asked)
    assert found[0] == status and found[1]["error"]


def test_two_models_stay_open_and_a_new_checkpoint_is_noticed(tmp_path):
    names = []
    for number in range(3):
        source = folder() / name_of("text-")
        shutil.copytree(source, tmp_path / f"20260101-00000{number}-copy-abcdef")
        names.append(f"20260101-00000{number}-copy-abcdef")
    models = OpenModels(Runs(tmp_path))
    first = models.take(names[0])
    assert models.take(names[0]) is first
    for name in names[1:]:
        models.take(name)
    assert len(models._open) == generation.OPEN and models.take(names[0]) is not first
    before = models.take(names[2])
    with (tmp_path / names[2] / "eval.jsonl").open("ab") as file:
        file.write(b'{"step": 10, "loss": 9.0}\n')
    assert models.take(names[2]) is not before


def test_a_damaged_checkpoint_is_refused(tmp_path):
    source = folder() / name_of("text-")
    copy = shutil.copytree(source, tmp_path / source.name)
    for path in copy.rglob("model.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(ValueError, match="no checkpoint that can be used"):
        OpenModels(Runs(tmp_path)).take(source.name)


def test_an_answer_has_the_confidence_that_evaluation_gives_it(opened, models):
    name = name_of("people")
    status, found = post(opened, "/api/ask", run=name, name="Ann")
    saved = models.take(name)
    question = Question("Where was Ann born?", None)
    [wanted] = answer_questions(precise(saved.model), saved.tokenizer, [question])
    assert status == 200 and found["question"] == question.text
    assert found["answer"] == wanted.given
    assert found["confidence"] == pytest.approx(wanted.confidence, rel=1e-9)
    sure = [one["confidence"] for one in found["alternatives"]]
    assert sure == sorted(sure, reverse=True) and 0 < len(sure) <= 4
    assert found["answer"] not in [one["answer"] for one in found["alternatives"]]


def test_the_alternatives_are_scored_as_the_answer_is(models):
    """Among them, before it is taken out, is the answer itself with the same confidence."""
    saved = models.take(name_of("people"))
    exact = precise(saved.model)
    [wanted] = answer_questions(exact, saved.tokenizer, [Question("Who?", None)])
    found = {
        one["answer"]: one["confidence"]
        for one in generation._others(exact, saved.tokenizer, "Who?")
    }
    assert found[wanted.given] == pytest.approx(wanted.confidence, rel=1e-9)


def test_a_run_without_questions_says_so(opened, models):
    status, found = post(opened, "/api/ask", run=name_of("text-"), question="Who?")
    assert status == 400 and "not trained on questions" in found["error"]


@pytest.mark.parametrize("asked", [{}, {"question": ""}, {"question": "x" * 301}, {"name": 3}])
def test_a_question_is_a_short_text(opened, models, asked):
    assert post(opened, "/api/ask", run=name_of("people"), **asked)[0] == 400
