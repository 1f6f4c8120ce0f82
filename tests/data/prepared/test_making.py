"""A preparation: the same bytes however it is worked, killed or resumed; one line for errors."""

import json
import os
import signal

import numpy as np
import pytest

from attnlab import config, files
from attnlab.data.prepared import folder, making
from attnlab.data.prepared.corpus import Prepared
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation
from attnlab.data.tokens import Bytes

TEXTS = [f"Document {number}: " + "words and words " * (number % 9) for number in range(150)]
SMALL = ("tokenizer=bytes", "validation=0.2", "part=2KB", "workers=1")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    return jsonl(tmp_path / "a.jsonl", TEXTS)


def jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def made(source, place, *words, **options):
    settings = config.override(Preparation(), [*SMALL, *words])
    return prepare(settings, source, place, **options)


def contents(place):
    """All that decides a training; the plan names the times of the source's files."""
    ours = sorted(place.glob("*.tokens")) + sorted(place.glob("*.ends"))
    return {path.name: path.read_bytes() for path in [*ours, place / "index.json"]}


def test_a_prepared_text_is_the_text(source, tmp_path):
    report = made(source, tmp_path / "out")
    corpus = Prepared(path=str(tmp_path / "out")).load()
    pieces = {split: list(corpus.pieces(split)) for split in ("train", "validation")}
    assert sorted(pieces["train"] + pieces["validation"]) == sorted(text + "\n" for text in TEXTS)
    kept = [text for text in TEXTS if Preparation(validation=0.2).kept_apart(text.encode())]
    assert pieces["validation"] == [text + "\n" for text in kept] and 10 < len(kept) < 50
    assert report["train_documents"] == 150 - len(kept)
    assert report["text_bytes"] == report["encoded_bytes"] == sum(map(len, TEXTS))
    assert report["train_tokens"] + report["validation_tokens"] == sum(map(len, TEXTS)) + 150


def test_shards_are_plain_numbers(source, tmp_path):
    made(source, tmp_path / "out", "tokenizer=bpe", "tokenizer.vocabulary=300")
    tokens = np.fromfile(tmp_path / "out" / "train-00000-00000.tokens", "<u2")
    ends = np.fromfile(tmp_path / "out" / "train-00000-00000.ends", "<u4")
    tokenizer = folder.read_tokenizer(tmp_path / "out")
    assert ends[-1] == len(tokens) and (np.diff(ends.astype(int)) > 0).all()
    kept = Preparation(validation=0.2).kept_apart
    first = next(text for text in TEXTS if not kept(text.encode()))
    assert tokenizer.decode(tokens[: ends[0]]) == first + "\n"


def test_parts_of_any_size_and_any_number_of_workers_give_the_same_text(source, tmp_path):
    made(source, tmp_path / "one", "part=1MB")
    made(source, tmp_path / "many")
    made(source, tmp_path / "two", "workers=2")
    texts = [list(Prepared(path=str(tmp_path / n)).load().alphabet()) for n in ("one", "many")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "many") == contents(tmp_path / "two")


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_killed_at_any_write_it_resumes_to_the_same_bytes(source, tmp_path, tokenizer):
    words = (f"tokenizer={tokenizer}", "part=5KB")
    made(source, tmp_path / "whole", *words)
    wanted = contents(tmp_path / "whole")
    for kills in range(60):
        place = tmp_path / "killed"
        if not killed_at(1 + kills * 4 % 9, source, place, words):  # a part takes 5 writes
            break
        files.write_new(place / f".part-0.json.{kills}.tmp", b"half")
        if (place / "index.json").exists():  # killed after that: it is whole
            assert contents(place) == wanted
            continue
        with pytest.raises(ValueError, match=r"not prepared to the end|is no prepared text"):
            Prepared(path=str(place)).load()
    assert kills >= 5
    assert contents(place) == wanted
    left = {path.name for path in place.iterdir()}
    assert left - set(wanted) == {"plan.json", "tokenizer.json", ".lock"}


def killed_at(number, source, place, words):
    """A process that is killed inside its write of that number; whether it came so far."""
    child = os.fork()
    if child == 0:
        written, plain = [], files._write

        def write(path, content):
            written.append(path)
            if len(written) == number:
                plain(path, content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            plain(path, content)

        files._write = write
        try:
            made(source, place, *words)
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def test_what_is_done_is_not_done_again_and_what_is_damaged_is(source, tmp_path, monkeypatch):
    place = tmp_path / "out"
    made(source, place)
    wanted = contents(place)
    assert made(source, place)["encoded_bytes"] == 0
    path = place / "train-00002-00000.tokens"
    state = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert made(source, place)["encoded_bytes"] == 0  # nothing shows it: trusted by size and time
    assert 0 < made(source, place, check=True)["encoded_bytes"] < 4000
    assert contents(place) == wanted
    assert made(source, place, check=True)["encoded_bytes"] == 0


def test_a_part_that_was_damaged_before_the_end_is_made_again(source, tmp_path, monkeypatch):
    made(source, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_index", None)
        with pytest.raises(TypeError):
            made(source, tmp_path / "out")
    path = tmp_path / "out" / "train-00001-00000.ends"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert 0 < made(source, tmp_path / "out")["encoded_bytes"] < 4000
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_of_other_things_is_refused(source, tmp_path):
    place = tmp_path / "out"
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds mine\.txt, which is of no preparation"):
        made(source, place)
    assert [path.name for path in place.iterdir()] == ["mine.txt"]
    with pytest.raises(ValueError, match="is a file"):
        made(source, place / "mine.txt")
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(OSError, match="is a link"):
        made(source, tmp_path / "link")
    with pytest.raises(ValueError, match="lies in the source"):
        made(str(place), place / "inside")
    with pytest.raises(ValueError, match="the source lies in"):
        made(source, tmp_path)


def test_another_source_other_settings_and_another_version_are_refused(source, tmp_path):
    place = tmp_path / "out"
    made(source, place)
    with pytest.raises(ValueError, match=r"other settings \(validation was 0\.2, now 0\.3\)"):
        made(source, place, "validation=0.3")
    jsonl(tmp_path / "a.jsonl", TEXTS[:-1])
    with pytest.raises(ValueError, match="another source, or its files have changed"):
        made(source, place)
    plan = folder._sealed(place / "plan.json")
    content = making.json_files.sealed_json({**plan, "schema": 99})
    (place / "plan.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"another version of attnlab \(schema 99, this has 1\)"):
        made(source, place)


def test_what_is_bad_is_refused_or_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good one"}\n\nno json\n{"other": 1}\n{"text": "\xff"}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, byte 21: a document empty; .*bad=skip"):
        made(str(path), tmp_path / "out", "validation=0")
    report = made(str(path), tmp_path / "out", "validation=0", "bad=skip")
    assert report["left_out"] == {
        "not UTF-8": 1,
        "empty": 1,
        "not JSON": 1,
        "without the field": 1,
    }
    assert report["train_documents"] == 1


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
def test_a_source_without_text_is_refused(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no document to train on"):
        made(str(path), tmp_path / "out", "bad=skip")


def test_files_of_no_kind_are_named_or_counted(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    (tmp_path / "in" / "b.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"files of no known kind: b\.png"):
        made(str(tmp_path / "in"), tmp_path / "out")
    report = made(str(tmp_path / "in"), tmp_path / "out", "bad=skip", "validation=0")
    assert (report["left_out_files"], report["train_documents"]) == (1, 1)


def test_a_full_disk_is_said_with_path_and_bytes_and_leaves_nothing_half(
    source, tmp_path, monkeypatch
):
    plain = files._write

    def write(path, content):
        if "train-00002" in path.name:
            plain(path, content[:10])
            raise OSError(28, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(files, "_write", write)
    with pytest.raises(OSError, match=r"train-00002-00000\.tokens could not be written \([\d,]+ b"):
        made(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*00002*"))
    monkeypatch.undo()
    made(source, tmp_path / "out")


def test_a_tokenizer_from_elsewhere_is_used_as_it_is(source, tmp_path):
    made(source, tmp_path / "one", "tokenizer=bpe", "tokenizer.vocabulary=290")
    made(source, tmp_path / "two", f"tokenizer_from={tmp_path / 'one'}", "part=5KB")
    read = [folder.read_tokenizer(tmp_path / name).to_json() for name in ("one", "two")]
    assert read[0] == read[1]
    theirs = tmp_path / "tokenizer.json"
    theirs.write_text(json.dumps(read[0]["tokenizers"]))
    made(source, tmp_path / "three", f"tokenizer_from={theirs}", "part=5KB")
    found = folder.read_tokenizer(tmp_path / "three").to_json()
    assert (found["name"], found["size"]) == ("huggingface", 290)
    tokens = [p.read_bytes() for n in ("two", "three") for p in [tmp_path / n / FIRST]]
    assert tokens[0] == tokens[1]
    with pytest.raises(ValueError, match=r"there is no .*nowhere"):
        made(source, tmp_path / "four", "tokenizer_from=nowhere")


FIRST = "train-00000-00000.tokens"


def test_marks_of_a_tokenizer_are_no_text(tmp_path):
    special = tmp_path / "tokenizer.json"
    special.write_text(json.dumps(Bytes().train([], special=True).to_json()))
    source = jsonl(tmp_path / "a.jsonl", ["plain", "a □ mark"])
    words = ("validation=0", f"tokenizer_from={special}")
    with pytest.raises(ValueError, match="a document with a mark of the tokenizer"):
        made(source, tmp_path / "out", *words)
    report = made(source, tmp_path / "out", *words, "bad=skip")
    assert report["left_out"] == {"with a mark of the tokenizer": 1}


def test_only_one_process_prepares_a_folder(source, tmp_path):
    (tmp_path / "out").mkdir()
    with folder.locked(tmp_path / "out"):
        with pytest.raises(ValueError, match="is being prepared by another process"):
            made(source, tmp_path / "out")


def test_a_worker_that_dies_is_one_line_and_the_rest_is_kept(source, tmp_path, monkeypatch):
    class Deadly:
        def __call__(self, part, piece):
            """Never: who takes it out of a message ends."""

        def __reduce__(self):
            return os._exit, (1,)

    monkeypatch.setattr(making.work, "encode", Deadly())
    with pytest.raises(ValueError, match="a worker was killed"):
        made(source, tmp_path / "out", "workers=2")
    monkeypatch.undo()
    made(source, tmp_path / "whole")
    made(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
