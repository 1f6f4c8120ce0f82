"""The cache: a folder that others can write to, and compiled code that was exchanged.

Who can write to a person's own cache has that person's rights already: a library with the right
hash beside it is loaded. What was changed without the hash is compiled anew.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import replace
from attnlab.checks.hostile.trial import EITHER, Family, Place, Plant, Trial

COMPILER = shutil.which(os.environ.get("CC") or "cc")
CACHE = {"ATTNLAB_CACHE": "{folder}/cache"}
EVIL = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/mark", getenv("ATTNLAB_HOSTILE_TRIAL"));
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}
"""


def evil_library(place: Place) -> bytes:
    """A library that does its harm when it is loaded."""
    source = place.write("evil.c", EVIL)
    built = place.folder / "evil.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", built], check=True)
    return built.read_bytes()


def libraries(place: Place) -> list[Path]:
    return sorted((place.copy("cache", "cache") / "attnlab").glob("*.so"))


def exchanged(*, sealed: bool | None = False, mode: int = 0o700, owner: int = -1) -> Plant:
    """Evil libraries under the right names; `sealed`: with the right hash, None: with none."""

    def plant(place: Place) -> None:
        content = evil_library(place)
        for path in libraries(place):
            path.write_bytes(content)
            seal = path.with_suffix(".sha256")
            if sealed is None:
                seal.unlink()
            elif sealed:
                seal.write_bytes(hashlib.sha256(content).hexdigest().encode())
            path.parent.chmod(mode)
            if owner >= 0 and os.getuid() == 0:
                os.chown(path.parent, owner, owner)
            elif owner >= 0:
                path.parent.chmod(0o777)  # only root can give files away

    return plant


def linked(place: Place) -> None:
    content = evil_library(place)
    for path in libraries(place):
        place.write(f"elsewhere/{path.name}", content)
        replace(path, "link", place.folder / "elsewhere" / path.name)


def seal_linked(place: Place) -> None:
    for path in libraries(place):
        replace(path.with_suffix(".sha256"), "link", place.victim)


def special(kind: str) -> Plant:
    def plant(place: Place) -> None:
        for path in libraries(place):
            replace(path, kind, place.victim)

    return plant


def folder_is_file(place: Place) -> None:
    place.write("cache", "no folder")


def shards_of_all(place: Place) -> None:
    (place.folder / "cache" / "attnlab").mkdir(parents=True)
    (place.folder / "cache" / "attnlab").chmod(0o777)


def naive_load(place: Place) -> None:
    for path in sorted((place.folder / "cache" / "attnlab").glob("*.so")):
        ctypes.CDLL(str(path))


TRIALS = [
    Trial(name="a folder that all can write to", plant=exchanged(sealed=True, mode=0o777),
          act=acts.use_kernel, codes=EITHER, environment=CACHE),
    Trial(name="a folder that a group can write to", plant=exchanged(sealed=True, mode=0o770),
          act=acts.use_kernel, codes=EITHER, environment=CACHE),
    Trial(name="a folder of somebody else", plant=exchanged(sealed=True, owner=12345),
          act=acts.use_kernel, codes=EITHER, environment=CACHE),
    Trial(name="exchanged libraries", plant=exchanged(), act=acts.use_kernel, codes=EITHER,
          environment=CACHE),
    Trial(name="exchanged libraries without hashes", plant=exchanged(sealed=None),
          act=acts.use_kernel, codes=EITHER, environment=CACHE),
    Trial(name="libraries that are links", plant=linked, act=acts.use_kernel, codes=EITHER,
          environment=CACHE),
    Trial(name="hashes that are links", plant=seal_linked, act=acts.use_kernel, codes=EITHER,
          environment=CACHE),
    Trial(name="libraries that are FIFOs", plant=special("FIFO"), act=acts.use_kernel,
          codes=EITHER, environment=CACHE),
    Trial(name="libraries that are folders", plant=special("folder"), act=acts.use_kernel,
          codes=EITHER, environment=CACHE),
    Trial(name="a cache that is a file", plant=folder_is_file, act=acts.use_kernel,
          codes=EITHER, environment=CACHE),
    Trial(name="tokens in a folder that all can write to", plant=shards_of_all,
          act=acts.cache_tokens, environment=CACHE),
    Trial(name="loading what is there", plant=exchanged(), act=naive_load, caught="executed"),
]  # fmt: skip
FAMILY = Family(
    name="caches",
    about="compiled code and tokens in the cache",
    trials=TRIALS if COMPILER else [],  # without a compiler nothing compiled is kept
)
