"""Archives under the names of our files: nothing is unpacked, whatever a file is called."""

import gzip
import io
import tarfile
import zipfile
import zlib
from pathlib import Path

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import content_of
from attnlab.checks.hostile.trial import (
    AGAIN,
    EITHER,
    GENERATE,
    LIST,
    RESUME,
    Family,
    Place,
    Plant,
    Trial,
    command,
)

OUTSIDE = "../../../../victims/precious.txt"  # from a checkpoint's folder; also from above it
MODEL = "checkpoint/model.safetensors"
BOMB = gzip.compress(b"\0" * (1 << 28), 9)  # 256 MiB in 256 kB


def tar(name: str = OUTSIDE, kind: bytes = tarfile.REGTYPE, mode: str = "w") -> bytes:
    """An archive with one file that wants to lie outside of where it is unpacked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, OUTSIDE, 0
        archive.addfile(member, io.BytesIO())
        behind = tarfile.TarInfo(name)
        behind.size = 5
        archive.addfile(behind, io.BytesIO(b"mine\n"))
    return out.getvalue()


def zipped(name: str = OUTSIDE) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, "mine\n")
    return out.getvalue()


def appended(place: Place) -> None:
    """Good tensors with an archive behind them: a file that is two things at once."""
    content = (place.checkpoint / "model.safetensors").read_bytes()
    content_of(MODEL, content + zipped())(place)


def beside(name: str, content: bytes) -> Plant:
    return lambda place: (place.run, place.write(name, content))


def extract_tar(place: Place) -> None:
    with tarfile.open(place.checkpoint / "model.safetensors") as archive:
        archive.extractall(place.checkpoint, filter="fully_trusted")


def extract_zip(place: Place) -> None:
    with zipfile.ZipFile(place.checkpoint / "model.safetensors") as archive:
        for name in archive.namelist():
            target = Path(place.checkpoint, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))


def inflate(place: Place) -> None:
    content = gzip.decompress((place.run / "config.json").read_bytes())
    (place.folder / "inflated").write_bytes(content)


FAMILY = Family(
    name="archives",
    about="archives under the names of our files",
    trials=[
        Trial(name="a zip as tensors", plant=content_of(MODEL, zipped()), act=GENERATE),
        Trial(name="a tar as tensors", plant=content_of(MODEL, tar()), act=GENERATE),
        Trial(
            name="a tar with a link as tensors",
            plant=content_of(MODEL, tar("inner", tarfile.SYMTYPE)),
            act=RESUME,
            codes=EITHER,
        ),
        Trial(
            name="a compressed tar as tensors",
            plant=content_of(MODEL, tar(mode="w:gz")),
            act=GENERATE,
        ),
        Trial(name="a zip behind good tensors", plant=appended, act=GENERATE),
        Trial(
            name="a gzip bomb as config.json",
            plant=content_of("config.json", BOMB),
            act=RESUME,
            codes=(0,),
            said=AGAIN,
        ),
        Trial(
            name="a gzip bomb as the checkpoint's state",
            plant=content_of("checkpoint/state.json", BOMB),
            act=RESUME,
        ),
        Trial(
            name="a zlib bomb as a log",
            plant=content_of("metrics.jsonl", zlib.compress(b"\0" * (1 << 28), 9)),
            act=LIST,
            codes=EITHER,
        ),
        Trial(
            name="a zip in place of a run",
            plant=beside("runs/run.zip", zipped()),
            act=command("generate", "runs/run.zip", "--prompt", "x"),
        ),
        Trial(
            name="a tar in place of a run",
            plant=beside("runs/run.tar", tar()),
            act=command("train", "tiny", "--runs", "runs", "--resume", "runs/run.tar"),
        ),
        Trial(
            name="a zip as text",
            plant=beside("text.txt", zipped()),
            act=command("train", "tiny", "data=text.txt", "steps=1"),
            codes=EITHER,
        ),
        Trial(
            name="a gzip bomb as text",
            plant=beside("text.txt", BOMB),
            act=command("train", "tiny", "data=text.txt", "steps=1"),
        ),
        Trial(
            name="a zip as a shard",
            plant=lambda place: (place.copy("shards", "shards") / "00000.tokens").write_bytes(
                zipped()
            ),
            act=acts.open_shards,
            codes=EITHER,
        ),
        Trial(
            name="a gzip bomb as --contract",
            plant=beside("contract.json", BOMB),
            act=command("audit", "x.py:X", "--contract", "contract.json"),
        ),
        Trial(
            name="a zip as code to audit",
            plant=beside("code.py", zipped("__main__.py")),
            act=command("audit", "code.py:Attention", "--timeout", "50"),
        ),
        Trial(
            name="a tar that is unpacked",
            plant=content_of(MODEL, tar()),
            act=extract_tar,
            caught="changed",
        ),
        Trial(
            name="a zip that is unpacked by its names",
            plant=content_of(MODEL, zipped()),
            act=extract_zip,
            caught="changed",
        ),
        Trial(
            name="a gzip bomb that is inflated",
            plant=content_of("config.json", BOMB),
            act=inflate,
            caught="exhausted",
        ),
    ],
)
