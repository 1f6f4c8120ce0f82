"""A person's file, loaded and audited in a process of its own that may crash, hang or eat memory.

    parent: audit_in_child(request, limits) -> Answer    child: python -m attnlab.audit.sandbox FD

The request goes in on the child's standard input as JSON. Lines of JSON come back on a pipe of
their own, so whatever the code prints stays out of them; of that, the end is kept, to be shown
when the process dies. Nothing is unpickled: what comes back is plain data, whoever wrote it. Each
line begins with a secret that came with the request: code that writes to every file that is open
ends its audit, and forges none. What is known comes after each property, so that an audit that ends
early loses nothing. The child is two processes (`audit/keeper.py`): one ends what the other leaves.

The time is limited by the parent, the memory in the child once torch is loaded, so that what torch
itself takes does not count. Where the system does not tell how much that is (it does on Linux),
memory is not limited.
"""

import dataclasses
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from attnlab import config
from attnlab.audit.answer import Answer as Answer
from attnlab.audit.answer import answer_of, ended, plain_of, stopped
from attnlab.audit.contract import Certificate, Contract
from attnlab.audit.errors import AuditError, InputError, SubjectError
from attnlab.audit.hf.families import with_folder
from attnlab.audit.keeper import keep_in_child
from attnlab.audit.partial import UNEXAMINED, Keep
from attnlab.json_files import finite
from attnlab.memory import ran_out
from attnlab.printable import one_line

if TYPE_CHECKING:
    from attnlab.audit.subject.base import Subject

    Audited = tuple[Certificate, Subject, Mapping[str, Any]]  # and the options it was made with

Tick = Callable[[str], None]
TAIL = 4_000  # bytes of what the code printed that are kept
LINES = 3  # of them that are shown
PATIENCE = 2  # seconds that Python may take to end, after which it is killed
GRACE = 10  # seconds after its limit when a child without a parent ends itself
SHORT = "memory ran out"
# activities that are no examination of a property, as the end of "while it …"
BUILT, CALLED, EXAMPLES = "build", "how it is called", "smaller cases of its failures"
PHRASES = {
    "": "was loaded",
    BUILT: "was built",
    CALLED: "was called for the first time, to find out how",
    EXAMPLES: "was run again to make its failures smaller",
}
NEEDS_GPU = (
    "Found no NVIDIA driver",
    "not compiled with CUDA",
    "No CUDA GPUs are available",
    "active drivers ([])",  # Triton
    "Cannot access accelerator device",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    seconds: float = 60.0
    gibibytes: float = 8.0

    def __post_init__(self) -> None:
        for name, value, option in (
            ("time", self.seconds, "--timeout 60"),
            ("memory", self.gibibytes, "--memory 8"),
        ):
            if not 0 < value < 1e6:
                raise InputError(f"the limit of {name} is {value:g}; use more than 0, as {option}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to audit, as texts of a command line: nothing needs to be pickled."""

    target: str
    options: tuple[str, ...] = ()  # of its constructor, each as key=value
    contract: Contract = Contract()
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", with_folder(self.target))
        if self.device != "cpu" and self.target.startswith("hf:"):
            raise InputError("models of transformers are audited on the CPU: leave --device out")

    def plain(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "options": list(self.options),
            "contract": self.contract.declared(),
            "device": self.device,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Request":
        contract = config.from_dict(Contract, plain["contract"])
        return cls(
            target=plain["target"],
            options=tuple(plain["options"]),
            contract=contract,
            device=plain["device"],
        )


def audit_in_child(request: Request, limits: Limits, tick: Tick = lambda text: None) -> Answer:
    """The audit of a file, made in a child process that ends before this returns."""
    try:
        return _audit_in_child(request, limits, tick)
    except Exception as error:  # `_account` tells ours from theirs
        detail, trace = _account(error)
        return Answer(target=request.target, detail=detail, traceback=trace)


def _audit_in_child(request: Request, limits: Limits, tick: Tick) -> Answer:
    secret = secrets.token_hex(16)
    given = {**request.plain(), **vars(limits), "secret": secret}
    with _child(limits) as (process, messages):
        assert process.stdin is not None and process.stdout is not None
        monitor = _Monitor(process, messages, limits, tick, secret)
        try:
            # a child that dies at once does not read
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(given).encode())
            found = monitor.answer()
        except KeyboardInterrupt:
            return stopped(request.target, monitor.known(request.target), monitor.where)
        if found is not None:
            return answer_of(request.target, found)
        # its own exit code if possible
        _kill(process, 0 if monitor.late or monitor.garbled else PATIENCE)
        cause, reason = monitor.reason(request.target)
        return ended(request.target, monitor.known(request.target), cause, reason)


def audit_here(
    request: Request,
    tick: Tick = lambda text: None,
    keep: Callable[[Answer], None] = lambda answer: None,
) -> Answer:
    """The same in this process: nothing protects it from the code. `keep` gets what is known."""
    import torch

    known: Answer | None = None

    def hold(certificate: Certificate) -> None:
        nonlocal known
        known = Answer(target=request.target, certificate=certificate)
        keep(known)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same weights in every audit of the same code
        try:
            audit = _audit_model if request.target.startswith("hf:") else _audit_file
            certificate, subject, options = audit(request, tick, hold)
        except KeyboardInterrupt:  # a person's, most likely; `main` knows better
            raise
        except BaseException as error:  # code may raise what is no Exception
            detail, trace = _account(error)
            if trace:
                return Answer(target=request.target, detail=detail, traceback=trace)
            return ended(request.target, known, detail, detail)
        tick(EXAMPLES)
        return with_examples(request.target, certificate, subject, options, keep)


def _audit_file(request: Request, tick: Tick, keep: Keep) -> "Audited":
    from attnlab.audit.examine import examine
    from attnlab.audit.properties.device import Device
    from attnlab.audit.subject.adapters import arrange, subject_for
    from attnlab.audit.subject.load import from_file, options_of, text_hint

    options = options_of(request.options, request.target)
    code = from_file(request.target, options)
    tick(CALLED)
    try:
        subject = subject_for(code, options, request.target.rpartition(":")[2], request.device)
    except InputError as error:
        raise InputError(f"{error}{text_hint(request.target, options)}") from error
    subject = arrange(subject, request.contract)
    more = [Device()] if subject.device else []
    return examine(subject, request.contract, tick, more=more, keep=keep), subject, options


def _audit_model(request: Request, tick: Tick, keep: Keep) -> "Audited":
    from attnlab.audit.hf.models import certificate_of, subject_of
    from attnlab.audit.subject.load import options_of

    options = options_of(request.options)
    tick(BUILT)
    subject = subject_of(request.target.removeprefix("hf:"), **options)
    certificate = certificate_of(subject, tick, keep, **request.contract.declared())
    return certificate, subject, options


def with_examples(
    target: str,
    certificate: Certificate,
    subject: "Subject",
    options: Mapping[str, Any],
    keep: Callable[[Answer], None] = lambda answer: None,
) -> Answer:
    """The certificate is finished: an error of ours on the way to an example goes beside it."""
    from attnlab.audit.repro.smallest import example_of, unrepeated

    known = Answer(target=target, certificate=certificate)
    examples = [unrepeated(finding, UNEXAMINED) for finding in certificate.failed]
    for number, finding in enumerate(certificate.failed):
        known = dataclasses.replace(
            known, examples=tuple(finite(dataclasses.asdict(one)) for one in examples)
        )
        keep(known)
        try:
            examples[number] = example_of(finding, subject, target, options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # likewise
            detail, trace = _account(error)
            examples[number] = unrepeated(finding, detail)
            if trace and not known.traceback:  # the first will do
                known = dataclasses.replace(known, detail=detail, traceback=trace)
    return dataclasses.replace(
        known, examples=tuple(finite(dataclasses.asdict(one)) for one in examples)
    )


def _account(error: BaseException) -> tuple[str, str]:
    """Why there is no answer, in one line; a traceback too if attnlab itself failed."""
    detail = advice_on(error)
    if isinstance(error, SystemExit):
        detail = f"the code called sys.exit({error.code!r}) while it was loaded or run"
    theirs = isinstance(error, SubjectError | InputError | MemoryError)
    theirs |= not isinstance(error, Exception)  # which we do not raise
    if theirs or ran_out(error) or _needs_gpu(str(error)):  # the code used up what we need too
        return detail, ""
    if not isinstance(error, AuditError):
        detail = f"attnlab itself failed: {detail}"
    return detail, "".join(traceback.format_exception(error))


def advice_on(error: BaseException) -> str:
    """An error as one line that a person can act upon."""
    plain = isinstance(error, SubjectError | InputError | AuditError)
    named = "" if plain else f"{type(error).__name__}: "
    text = one_line(f"{named}{error}", sys.maxsize)
    if _needs_gpu(text):
        advice = "it needs a GPU, and there is none here; audit it on a machine that has one"
        return f"{advice} ({one_line(text)})"
    if ran_out(error):
        return f"{SHORT}; allow more with --memory, or make it smaller ({one_line(text)})"
    return one_line(text)


def _needs_gpu(text: str) -> bool:
    """Whether a library says so; it has no code for that, only words."""
    return any(words in text for words in NEEDS_GPU)


@contextmanager
def _child(limits: Limits) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """The process, and where its messages are read; afterwards nothing of it is left."""
    reads, writes = os.pipe()
    # the same modules are found as here, and none by chance in the current folder
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", __name__, str(writes)]
    with (
        os.fdopen(reads, "rb", buffering=0) as messages,
        tempfile.TemporaryDirectory(prefix="attnlab_", ignore_cleanup_errors=True) as scratch,
    ):
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
                pass_fds=(writes,),
                start_new_session=True,  # what it starts can be ended with it
            )
        finally:
            os.close(writes)
        try:
            yield process, messages  # type: ignore[misc]
        finally:
            _kill(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()


def _kill(process: subprocess.Popen[bytes], patience: float = 0.2) -> None:
    """Kill what is left of the process and of those it started, and collect it."""
    with suppress(subprocess.TimeoutExpired):  # it may be about to end by itself
        process.wait(patience)
    with suppress(subprocess.TimeoutExpired):  # what went into a session of its own, too
        process.terminate()
        process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Monitor:
    """Reads what a child says and prints, until it answers, dies or takes too long."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        messages: BinaryIO,
        limits: Limits,
        tick: Tick,
        secret: str,
    ) -> None:
        self._process, self._limits, self._tick = process, limits, tick
        self._messages, self._secret = messages, secret.encode()
        self._activity, self.late, self.garbled = "", False, False
        self._so_far: dict[str, Any] | None = None
        self._output, self._unread = b"", b""
        self._until = time.monotonic() + limits.seconds

    def answer(self) -> dict[str, Any] | None:
        with selectors.DefaultSelector() as selector:
            assert self._process.stdout is not None
            selector.register(self._messages, selectors.EVENT_READ)
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not self.late and not self.garbled:
                left = self._until - time.monotonic()
                ready = [key.fileobj for key, _ in selector.select(min(0.5, max(left, 0)))]
                for stream in ready:
                    piece = os.read(stream.fileno(), 1 << 16)  # type: ignore[union-attr]
                    if not piece:
                        selector.unregister(stream)
                    if stream is not self._messages:
                        self._output = (self._output + piece)[-TAIL:]
                        continue
                    found = self._receive(piece)
                    if found is not None or not piece:
                        return found
                # something that it started may hold the pipes open
                if not ready and self._process.poll() is not None:
                    return None
                self.late = time.monotonic() >= self._until
        return None

    def _receive(self, piece: bytes) -> dict[str, Any] | None:
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in [*lines, self._unread]:
            known = line[: len(self._secret)]
            self.garbled |= known != self._secret[: len(known)]
        for line in [] if self.garbled else lines:
            try:
                message = json.loads(line.removeprefix(self._secret))
            except ValueError:  # something was written in its middle
                self.garbled = True
                return None
            if "answer" in message:
                return message["answer"]  # type: ignore[no-any-return]
            if "so_far" in message:
                self._so_far = message["so_far"]
            else:
                self._activity = message["activity"]
                self._tick(self._activity)
        return None

    def known(self, target: str) -> Answer | None:
        """What it has said that it found."""
        return None if self._so_far is None else answer_of(target, self._so_far)

    @property
    def where(self) -> str:
        return f" while it {PHRASES.get(self._activity, f'examined {self._activity}')}"

    def reason(self, target: str) -> tuple[str, str]:
        """Why it did not answer: in short, and with what it did then and what to do."""
        code = self._process.returncode
        advice = ""
        if self.late:
            what = f"time ran out after {self._limits.seconds:g} s"
            longer = max(60, 2 * math.ceil(self._limits.seconds))
            advice = f"; allow more with --timeout {longer}"
        elif self.garbled:
            what = "the code wrote to the pipe of the audit's answers"
            advice = "; let it write only to files that it has opened itself"
        elif code == -signal.SIGKILL:
            what = "the process was killed from outside, as when the machine's memory runs out"
        elif code < 0:
            what = f"the code crashed: {signal.strsignal(-code)} ({signal.Signals(-code).name})"
        else:
            what = f"the code ended its process with exit code {code}, as os._exit does"
        file = Path(target.rpartition(":")[0].removesuffix(":")).name
        return what, f"{what}{self.where}{advice}{self._last_lines(file)}"

    def _last_lines(self, file: str) -> str:
        text, crash, dump = self._output.decode(errors="replace").partition("Fatal Python error")
        lines = [line.strip() for line in (dump if crash else text).splitlines()]
        if crash:  # of the interpreter's dump, where in their file it was; the rest is ours
            frames = [line for line in lines if line.startswith("File ")]
            shown = [line for line in frames if file and file in line][:1] or frames[:1]
        else:
            shown = [line for line in lines if line][-LINES:]
        return f"; it printed: {' | '.join(shown)}" if shown else ""


def main() -> None:
    """The child: limits itself, audits, says what it does as it goes."""
    keep_in_child(int(sys.argv[1]))
    with os.fdopen(int(sys.argv[1]), "wb", buffering=0) as messages:
        given = json.loads(sys.stdin.buffer.read())
        secret = given.pop("secret").encode()

        def say(**message: object) -> None:
            messages.write(secret + json.dumps(message, allow_nan=False).encode() + b"\n")

        # ends it even in compiled code, and without a parent
        signal.alarm(math.ceil(given["seconds"]) + GRACE)
        _limit_memory(given["gibibytes"])
        _use_one_thread()
        request, known = Request.of(given), None

        def keep(answer: Answer) -> None:
            nonlocal known
            known = answer
            say(so_far=plain_of(answer))

        try:
            answer = audit_here(request, lambda text: say(activity=text), keep)
        except KeyboardInterrupt:  # no terminal reaches a session of its own
            reason = "the code raised KeyboardInterrupt, as if somebody had pressed Ctrl-C"
            answer = ended(request.target, known, reason, reason)
        if answer.detail.startswith(SHORT):
            limit = f"the audit took more than {given['gibibytes']:g} GiB: {answer.detail}"
            answer = ended(request.target, answer, answer.detail, limit)
        say(answer=plain_of(answer))
    os._exit(0)  # threads and exit handlers of the code have no say


def _limit_memory(gibibytes: float) -> None:
    try:
        import resource

        import torch

        pages = Path("/proc/self/statm").read_text().split()
    except (ImportError, OSError):  # no such limit on this system
        return
    # CUDA reserves addresses far beyond what it uses, so there only data can be counted
    cuda = torch.cuda.is_available()
    kind = resource.RLIMIT_DATA if cuda else resource.RLIMIT_AS
    used = int(pages[5 if cuda else 0]) * resource.getpagesize()
    _, most = resource.getrlimit(kind)
    wanted = used + int(gibibytes * 2**30)
    resource.setrlimit(kind, (wanted if most < 0 else min(wanted, most), most))


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # for inputs as small as these, threads only wait for each other


if __name__ == "__main__":
    main()
