"""The text of a run: read only if it is the one the run was trained on.

A run folder may come from a stranger, and its settings name the text by a path. They could name any
file of this machine. So a checkpoint records the fingerprint of its text, and before anything is
made of a text that a run names, its fingerprint must be the recorded one: who can write that down
has the text already. A run that is moved between machines of one person needs nothing but its text.
Where the two differ, the person names the text: `data=PATH`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from attnlab.config import split_override
from attnlab.data.corpora import Corpus, CorpusSettings
from attnlab.training.runs import Run
from attnlab.training.state import State


def load_text(corpus: CorpusSettings, known: str, run: Path | str) -> Corpus:
    """The text that the settings of a run name; a ValueError if it is not the one it was."""
    named = file_of(corpus)
    if named and not known:
        raise ValueError(
            f"{run} names {named} as its text and has no record of it, so it may be any file of "
            "yours; if you want it to be read, say so: data=PATH"
        )
    try:
        found = corpus.load()
    except ValueError as error:
        where = "its text is" if not named else f"{named}, which {run} names as its text, is"
        raise ValueError(f"{where} not there or not as it was ({error}); use data=PATH") from None
    refuse_other_text(found, known, run)
    return found


def refuse_other_text(found: Corpus, known: str, run: Path | str) -> None:
    """A ValueError if a text is not the one that a run was trained on, as far as that is known."""
    if known and found.fingerprint != known:
        raise ValueError(
            f"the text has changed: {found.name} is not what {run} was trained on. Restore it (of "
            "a folder every text file counts), or say where it is now: data=PATH. To go on with "
            "another text, begin a new run: start=RUN"
        )


def names_text(overrides: Sequence[str]) -> bool:
    """Whether a person has said which file to read."""
    keys = [path for path, _ in map(split_override, overrides)]
    return any(path in (["data"], ["corpus", "path"]) for path in keys)


def file_of(corpus: CorpusSettings) -> str:
    """The file or folder that settings name; empty for a text that is made or built in."""
    values = [getattr(corpus, field.name) for field in dataclasses.fields(corpus)]  # type: ignore[arg-type]
    return next((str(one) for one in values if isinstance(one, str | Path) and str(one)), "")


def recorded(run: Run, state: State) -> str:
    """The fingerprint in the checkpoint; of an older attnlab, in the run's manifest.json."""
    return state.corpus or str(run.manifest().get("corpus", ""))
