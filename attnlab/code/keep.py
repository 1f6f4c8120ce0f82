"""The source of a person's code, kept in a run to be read: `code/mine.py`. Nobody runs it."""

from pathlib import Path

from attnlab import files
from attnlab.code.fingerprint import source
from attnlab.code.own import own_parts

MOST = 1 << 20  # bytes; a whole package is known by its fingerprint and version


def keep_source(settings: object, folder: Path) -> None:
    """A copy of each file that the fingerprint is of; of two with one name the last is kept."""
    kept = {name: text for one in own_parts(settings) for name, text in source(one.code).items()}
    if sum(map(len, kept.values())) > MOST:
        return
    for name, text in kept.items():
        path = folder / "code" / name
        for above in reversed(path.relative_to(folder).parents[:-1]):
            files.make_folder(folder / above)  # each, since a link among them is refused
        files.write_whole(path, text)
