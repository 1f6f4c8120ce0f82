"""`attnlab bench prepare`: text of any size to tokens: rate, memory, kills, and a first step.

    rate      of `attnlab prepare` on made-up text, beside the `tokenizers` package alone, on a part
              of the same text, in its own threads and with nothing read or written
    memory    the peaks of the process and of its workers, added up; of a training
    kills     another preparation, killed (SIGKILL) when so many parts stand there, and resumed: its
              files must be those of one that nobody disturbed
    training  seconds from the command to the first step, after preparing and at a resume

Processor seconds say what a rate is on a machine that others use as well.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import counter_rng
from attnlab.bench.made_text import made_text
from attnlab.config import refusal, setting, settings
from attnlab.data.prepared import documents, folder, sources
from attnlab.data.prepared.preparation import size_of
from attnlab.stop import sparing_children, stoppable
from attnlab.training import runs

PEER = 8_000_000  # bytes of text that the peer encodes
WAIT = 0.02  # seconds between two looks at a folder
MORE = 6  # steps after the first, of which some are saved
PATIENCE = 600.0  # seconds until a training must have made its step
Tick = Callable[[str], None]


@settings
class PrepareBench:
    bytes: str = setting("100MB", about="text that is made and prepared")
    killed: str = setting("10MB", about="text of the preparation that is killed")
    kills: int = setting(3, low=0, about="times it is killed")
    vocabulary: int = setting(8192, low=258, about="tokens of BPE to learn")
    sample: str = setting("64MB", about="text that BPE learns from")
    workers: int | None = setting(None, low=1, none="one a core", about="processes that encode")
    training: bool = setting(True, about="train on it, and resume")
    folder: str = setting("", about="where text and tokens are made, and left; empty: nowhere")
    seed: int = setting(0, low=0, about="random seed of the text and of the moments of killing")

    def check(self) -> None:
        for name in ("bytes", "killed", "sample"):
            try:
                size_of(getattr(self, name))
            except ValueError as error:
                raise refusal(self, name, str(error)) from None

    def run(self, tick: Tick = lambda text: None) -> dict[str, Any]:
        report: dict[str, Any] = {"settings": asdict(self), "cores": os.cpu_count()}
        with _place(self.folder) as place, stoppable(lambda: "some of its parts", report.copy):
            text, tokens = place / "text.jsonl", place / "tokens"
            tick(f"making {self.bytes} of text")
            write_text(text, size_of(self.bytes), self.seed)
            words = [f"tokenizer.vocabulary={self.vocabulary}", f"sample={self.sample}"]
            words += [f"workers={self.workers}"] if self.workers else []
            tick(f"preparing {self.bytes}")
            report["prepared"] = prepared(text, tokens, words)
            tick("the package alone")
            report["peer"] = peer(text, tokens)
            if self.training:
                report["training"] = training(tokens, place / "runs", tick)
            if self.kills:
                report["killed"] = self._killed(place, words, tick)
        return report

    def _killed(self, place: Path, words: list[str], tick: Tick) -> dict[str, Any]:
        text, whole, killed = (place / name for name in ("few.jsonl", "few-whole", "few-killed"))
        write_text(text, size_of(self.killed), self.seed + 1)
        tick("preparing what nobody kills")
        prepared(text, whole, words)
        parts = len(list(whole.glob("train-*.tokens")))
        kills = wrong = 0
        while kills < self.kills:
            draw = float(counter_rng.uniform(self.seed, "kill", kills))
            there = 1 + int((kills + draw) * parts / self.kills)
            tick(f"killing it: {kills} of {self.kills}")
            if not _kill_at(text, killed, words, there):
                break
            kills += 1
            wrong += (killed / folder.INDEX).exists()
        prepared(text, killed, words)
        same = _contents(whole) == _contents(killed)
        return {"kills": kills, "bytes": self.killed, "same_bytes": same, "whole_too_early": wrong}

    def show(self, report: dict[str, Any], screen: Console) -> None:
        for line in lines(report):
            screen.print(line, highlight=False, soft_wrap=True)

    def passed(self, report: dict[str, Any]) -> bool:
        killed = report.get("killed", {"same_bytes": True, "whole_too_early": 0})
        return bool(
            report["peer"]["wrong"] == 0 and killed["same_bytes"] and not killed["whole_too_early"]
        )


def lines(report: dict[str, Any]) -> Iterator[str]:
    made = report["prepared"]
    mega = made["encoded_bytes"] / 1e6
    rate, each = mega / made["seconds"], mega / max(made["processor_seconds"], 1e-9)
    yield (
        f"{mega:,.0f} MB of text in {made['seconds']:,.1f} s by {made['workers']} processes: "
        f"{rate:.1f} MB/s, {each:.1f} MB a processor second"
    )
    beside = report["peer"]
    yield (
        f"tokenizers alone: {beside['rate']:.1f} MB/s, {beside['processor_rate']:.1f} MB a "
        f"processor second; ratio {each / beside['processor_rate']:.2f}; {beside['wrong']} of "
        f"{beside['documents']:,} documents with other tokens"
    )
    yield f"memory at most: {made['peak_bytes'] / 1e6:,.0f} MB, processes added up"
    if "training" in report:
        one = report["training"]
        yield (
            f"training: first step after {one['first']:.1f} s ({one['first_processor']:.1f} s of a "
            f"processor), resumed after {one['resumed']:.1f} s; memory at most "
            f"{one['peak_bytes'] / 1e6:,.0f} MB"
        )
    if "killed" in report:
        one = report["killed"]
        same = "the same bytes" if one["same_bytes"] else "OTHER BYTES"
        yield f"killed {one['kills']} times in {one['bytes']}: {same} at the end"


def write_text(path: Path, size: int, seed: int) -> None:
    with path.open("wb") as file:
        for content in made_text(size, seed):
            file.write(content)


def prepared(text: Path, tokens: Path, words: list[str]) -> dict[str, Any]:
    """What `attnlab prepare` says of itself, in a process of its own."""
    with _command("prepare", str(text), str(tokens), *words, "--json") as process:
        said = process.communicate()[0]
    if process.returncode:
        raise ValueError(f"attnlab prepare ended with exit code {process.returncode}")
    report: dict[str, Any] = json.loads(said)
    return report


def peer(text: Path, tokens: Path) -> dict[str, float]:
    """The package on the first documents, all at once; and whether ours are its tokens."""
    tokenizer = folder.read_tokenizer(tokens)
    inner = tokenizer.to_json()["tokenizers"]
    from attnlab.data.bpe import library

    package = library().Tokenizer.from_str(json.dumps(inner))
    found = sources.find(str(text))
    [part, *_] = sources.parts_of(found.files, PEER, "text")
    every = list(documents.documents_of(part, found.files, "text", "auto"))
    texts = [one.content.decode() + "\n" for one in every]
    before, processor = time.perf_counter(), time.process_time()
    encoded = package.encode_batch_fast(texts, add_special_tokens=False)
    seconds, processor = time.perf_counter() - before, time.process_time() - processor
    size = sum(len(one.content) for one in every)
    wrong = sum(
        ids.tolist() != one.ids
        for ids, one in zip(tokenizer.encode_each(texts), encoded, strict=True)
    )
    return {
        "rate": size / seconds / 1e6,
        "processor_rate": size / processor / 1e6,
        "documents": len(texts),
        "wrong": wrong,
    }


def training(tokens: Path, root: Path, tick: Tick) -> dict[str, float]:
    """Seconds to the first step of a small model, and to the next one after it was killed."""
    words = ["tiny", f"data={tokens}", "--runs", str(root), "steps=1000", "save_every=2"]
    words += ["evaluate_tokens=1000", "sample_every=none", "batch=8"]
    tick("training: its first step")
    first, used, peak = _seconds_to_a_step(root, words)
    tick("training: resumed")
    resumed, again, other = _seconds_to_a_step(root, [*words, "--resume"])
    return {
        "first": first,
        "first_processor": used,
        "resumed": resumed,
        "resumed_processor": again,
        "peak_bytes": max(peak, other),
    }


def _seconds_to_a_step(root: Path, words: list[str]) -> tuple[float, float, int]:
    """Until a step stands in the log that did not before; a few more, and it is killed.

    Also seconds of a processor and peak memory, of all of it.
    """
    done, seconds, begun = _last_step(root), 0.0, time.perf_counter()
    with _command("train", *words, quiet=True) as process:
        while time.perf_counter() - begun < PATIENCE and process.poll() is None:
            there = _last_step(root)
            if there > done and not seconds:
                seconds = time.perf_counter() - begun
            if there >= done + MORE:
                break
            time.sleep(WAIT)
        process.send_signal(signal.SIGKILL)
        used = os.wait4(process.pid, 0)[2]
        process.returncode = -signal.SIGKILL  # it has been waited for
    if not seconds:
        raise ValueError("the training did not come to a step")
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _last_step(root: Path) -> int:
    newest = next(iter(runs.all_in(root)), None)
    rows = newest.read("metrics") if newest is not None else []
    return int(rows[-1]["step"]) if rows else 0


def _kill_at(text: Path, tokens: Path, words: list[str], there: int) -> bool:
    """Kill a preparation when so many parts are done; whether it was still at work."""
    with _command("prepare", str(text), str(tokens), *words, quiet=True) as process:
        while process.poll() is None and len(list(tokens.glob("part-*"))) < there:
            time.sleep(WAIT)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return process.returncode == -signal.SIGKILL


@contextmanager
def _command(*words: str, quiet: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    with sparing_children():
        process = subprocess.Popen(
            [sys.executable, "-m", "attnlab", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _place(named: str) -> Iterator[Path]:
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="attnlab-prepare-") as made:
        yield Path(made)


def _contents(tokens: Path) -> dict[str, str]:
    """Hashes of all files that a training reads."""
    ours = [path for path in tokens.iterdir() if path.suffix in (".tokens", ".ends")]
    ours += [tokens / folder.INDEX, tokens / folder.TOKENIZER]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in ours}
