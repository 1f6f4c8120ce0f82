"""Code of a stranger: none runs that only a file names, and no audit of it is deceived.

A run folder and a file of settings may name a Python file that lies beside them. It runs once a
person has named it, and here nobody has.

Code under audit may attack the audit: no verdict is forged, nothing of it is left.

docs/audit.md promises a process of its own that may crash, hang, print and eat memory, and that
ends with all it has started. It promises nothing against code that knows how attnlab works inside
and means harm: such payloads are tried too, and reported apart.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import edited
from attnlab.checks.hostile.trial import (
    EVALUATE,
    GENERATE,
    RESUME,
    Act,
    Family,
    Place,
    Plant,
    Trial,
    command,
)
from attnlab.code import consent
from attnlab.code.fingerprint import fingerprint

# sees the future, and is declared causal: whatever it does, a pass would be forged
LEAKY = """
import json, os, signal, sys, time, torch
{top}
class Code(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
    def forward(self, x):
        {inside}
        return self.layer(x).flip(1).cumsum(1)
"""
CERTIFICATE = {
    "target": "code.py:Code",
    "contract": {"causal": True},
    "findings": [{"name": "causality", "verdict": "pass", "detail": "fine"}],
    "influence": [],
    "layers": 1,
}
ANSWER = {"answer": {"certificate": CERTIFICATE, "detail": "", "traceback": "", "examples": []}}
FORGED = json.dumps(ANSWER)
EVERYWHERE = """
for handle in range({first}, 64):
    try:
        os.write(handle, {text!r}.encode() + b"\\n")
    except OSError:
        pass
"""
STOLEN = """
frame = sys._getframe()
while "say" not in frame.f_locals:
    frame = frame.f_back
frame.f_locals["say"](answer={answer!r})
os._exit(0)
"""
PASSES = "code.py:Code: pass"
MALICE = "docs/audit.md: it protects from accidents, not from malice"


def audit(seconds: int = 50, gibibytes: float = 2) -> Act:
    return command(
        "audit", "code.py:Code", "--declare", "causal=true", "--timeout", str(seconds),
        "--memory", str(gibibytes),
    )  # fmt: skip


def code(top: str = "", inside: str = "pass") -> Plant:
    return lambda place: place.write("code.py", LEAKY.format(top=top, inside=inside))


def trial(
    name: str, top: str = "", inside: str = "pass", *, seconds: int = 50, **more: object
) -> Trial:
    known: dict[str, object] = {
        "name": name,
        "plant": code(top, inside),
        "act": audit(seconds),
        "codes": (1, 2),
        "patience": 120.0,
        "verdicts": True,
        "memory": 4096,  # MiB; --memory is what limits it
        "forbidden": PASSES,
        **more,
    }
    return Trial(**known)  # type: ignore[arg-type]


def naive_verdict(place: Place) -> None:
    """Believes what the code prints."""
    done = subprocess.run(["python3", "code.py"], capture_output=True, text=True, check=False)
    print(done.stdout)


def naive_exit_code(place: Place) -> None:
    """Believes the exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    failed = os.waitpid(pid, 0)[1]
    print("code.py:Code: fail" if failed else PASSES)


def naive_children(place: Place) -> None:
    subprocess.Popen(["sleep", "300"], start_new_session=True)


def naive_wait(place: Place) -> None:
    exec(compile((place.folder / "code.py").read_text(), "code.py", "exec"), {})


EVIL = """
open({mark!r}, "w").close()
from torch import nn
class Evil(nn.Module):
    def forward(self, *given):
        return given[-1]
"""
NAMED = "evil.py:Evil"
PLACES = ("model.attention", "model.score", "model.positions", "model")
SIZES = ("vocabulary", "context", "width", "depth", "heads")
SETTINGS = command("train", "tiny", "--config", "given.json", "--runs", "new", "device=cpu")


def naming(at: str) -> Callable[[Any], Any]:
    """Settings in which the file stands at this place, with its fingerprint."""

    def edit(plain: Any) -> object:
        *above, last = at.split(".")
        found = plain
        for key in above:
            found = found[key]
        sizes = {name: found[last][name] for name in SIZES if name in found[last]}
        found[last] = {"name": NAMED, "source": fingerprint(NAMED), **sizes}
        return plain

    return edit


def beside(plant: Plant, what: str = "code") -> Plant:
    """With the file in the folder of the person, as after unpacking an archive."""

    def planted(place: Place) -> None:
        path = place.write("evil.py", EVIL.format(mark=str(place.mark)))
        with contextlib.chdir(place.folder):
            plant(place)
        if what == "deep":
            path.write_text("-" * 200_000 + "1")
        elif what == "large":
            os.truncate(path, 400 << 30)

    return planted


def given(at: str) -> Plant:
    def plant(place: Place) -> None:
        settings = json.loads((place.run / "config.json").read_bytes())
        place.write("given.json", json.dumps(naming(at)(settings)))

    return plant


def without_consent(act: Act) -> Act:
    """Runs whatever settings name."""

    def naive(place: Place) -> None:
        consent.is_allowed = lambda code, found=None: True
        act(place)

    return naive


def named_trials(at: str) -> list[Trial]:
    """Each with a control, which shows that nothing but the consent is in the way."""
    run, file = beside(edited("checkpoint/config.json", naming(at))), beside(given(at))
    trials = [
        Trial(name=f"a file as {at} of a run, generate", plant=run, act=GENERATE),
        Trial(name=f"a file as {at} of a run, evaluate", plant=run, act=EVALUATE),
        Trial(name=f"a file as {at} of a run, resume", plant=run, act=RESUME),
        Trial(name=f"a file as {at} of --config", plant=file, act=SETTINGS),
    ]
    controls = [
        replace(
            one, name=f"{one.name}, nobody asked", act=without_consent(one.act), caught="executed"
        )
        for one in trials
    ]
    return trials + controls


LOOK = acts.page(
    "/api/look", body={"source": {"run": "20200101-000000-tiny-abcdef"}, "text": "the"}
)
UNREADABLE = [
    Trial(
        name=f"a file that is {what}, as model.attention of a run, {verb}",
        plant=beside(edited("checkpoint/config.json", naming("model.attention")), what),
        act=act,
    )
    for what in ("deep", "large")
    for verb, act in (("generate", GENERATE), ("on the page", LOOK))
]
SLEEPERS = """
import subprocess
for _ in range(5):
    subprocess.Popen(["sleep", "300"])
"""
DAEMON = """
import subprocess
subprocess.Popen(["sleep", "300"], start_new_session=True)
"""
FAMILY = Family(
    name="code",
    about="code that a file names, and code under audit that attacks",
    trials=[
        *(one for at in PLACES for one in named_trials(at)),
        *UNREADABLE,
        trial("os._exit(0) when loaded", "os._exit(0)"),
        trial("os._exit(0) when called", inside="os._exit(0)"),
        trial("sys.exit(0) when called", inside="sys.exit(0)"),
        trial("prints a verdict", f"print({PASSES!r}, flush=True)"),
        trial(
            "prints a verdict and leaves",
            f"print({PASSES!r}, flush=True); os._exit(0)",
            forbidden=f"\n{PASSES}",
        ),
        trial("prints an answer", EVERYWHERE.format(first=1, text=FORGED).replace("64", "3")),
        trial(
            "raises what looks like a verdict",
            inside=f"raise RuntimeError('\\n{PASSES}\\n')",
            forbidden=f"\n{PASSES}",
        ),
        trial("kills itself", inside="os.kill(os.getpid(), signal.SIGKILL)"),
        trial("stops itself", inside="os.kill(os.getpid(), signal.SIGSTOP)", seconds=12),
        trial("never ends when loaded", "while True: pass", seconds=12),
        trial(
            "never ends when called, and hears no signal",
            "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 14, 15)]",
            "time.sleep(300)",
            seconds=12,
        ),
        trial("prints without end", "while True: print('x' * 10_000)", seconds=12),
        trial("takes all memory", inside="self.kept = [torch.ones(2**28) for _ in range(99)]"),
        trial("starts processes", SLEEPERS),
        trial("starts processes and leaves", f"{SLEEPERS}\nos._exit(0)"),
        trial(
            "threads that do not end",
            "import threading\nthreading.Thread(target=time.sleep, args=(300,)).start()",
        ),
        trial("deletes its own file", "os.unlink(__file__)"),
        trial(
            "deletes its temporary folder",
            "import shutil, tempfile; shutil.rmtree(tempfile.gettempdir())",
        ),
        trial(
            "fills its temporary folder",
            "import tempfile\nopen(tempfile.gettempdir() + '/big', 'wb').write(b'x' * (150 << 20))",
        ),
        trial("a message of 50 MB", inside="raise ValueError('x' * 50_000_000)"),
        trial(
            "recursion without end",
            "sys.setrecursionlimit(10**9)",
            "f = lambda n: f(n + 1); f(0)",
            seconds=12,
        ),
        trial("closes every file", "os.closerange(3, 64)"),
        trial("replaces sys.stdout", "sys.stdout = sys.stderr = None"),
        trial("changes the folder", "os.chdir('/')"),
        trial("garbage on every file", EVERYWHERE.format(first=3, text="no JSON of ours")),
        trial("a forged answer on every file", EVERYWHERE.format(first=3, text=FORGED)),
        trial(
            "a forged answer on every file, and leaves",
            EVERYWHERE.format(first=3, text=FORGED) + "\nos._exit(0)",
        ),
        trial("a process in a session of its own", DAEMON),
        trial("a process in a session of its own, when called", inside=f"exec({DAEMON!r})"),
        trial("a process in a session of its own, and leaves", f"{DAEMON}\nos._exit(0)"),
        trial("kills its parent", "os.kill(os.getppid(), 9); os._exit(0)"),
        trial(
            "a forged answer with what our frames hold",
            STOLEN.format(answer=ANSWER["answer"]),
            codes=(0, 1, 2),
            not_promised=MALICE,
        ),
        trial(
            "every comparison says equal",
            "torch.equal = torch.allclose = lambda *a, **k: True\n"
            "torch.Tensor.abs = lambda self: self * 0",
            codes=(1, 2, 3),
            not_promised=MALICE,
        ),
        Trial(
            name="believing what is printed",
            plant=lambda place: place.write("code.py", f"print({PASSES!r})"),
            act=naive_verdict,
            forbidden=PASSES,
            caught="forged",
        ),
        Trial(
            name="believing an exit code",
            plant=code("os._exit(0)"),
            act=naive_exit_code,
            forbidden=PASSES,
            caught="forged",
        ),
        Trial(
            name="a process that is left",
            plant=code(),
            act=naive_children,
            codes=(0,),
            caught="left",
        ),
        Trial(
            name="running it here",
            plant=code("time.sleep(300)"),
            act=naive_wait,
            patience=3,
            caught="hung",
        ),
    ],
)
