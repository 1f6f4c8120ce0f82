"""The verb that makes token shards of text that does not fit in memory: attnlab prepare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from attnlab import config
from attnlab.cli.app import SETTINGS, AsJson, Overrides, app, print_json, progress, screen
from attnlab.cli.places import Address, On
from attnlab.cluster import at


@app.command(
    "prepare",
    context_settings=SETTINGS,
    epilog="Example: attnlab prepare text.jsonl text-tokens tokenizer.vocabulary=8192 · "
    "attnlab train tiny data=text-tokens",
)
def prepare_text(
    source: Annotated[
        str, typer.Argument(help="Text, JSONL (also .gz, .zst), Parquet, or a folder of them.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where tokens are kept; what training is given.")],
    overrides: Overrides = None,
    check: Annotated[
        bool, typer.Option("--check", help="Hash all that is there; make again what is damaged.")
    ] = False,
    on: On = "local",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make tokens of text that does not fit in memory, for data=FOLDER in a training.

    Read as a stream, worked by all cores, or by all machines of a Ray cluster. Stop it at any time,
    or kill it: the same command goes on, to the same bytes. The settings: attnlab list prepare.
    """
    from attnlab.data.prepared.making import RESUMES, prepare
    from attnlab.data.prepared.preparation import Preparation

    cluster = at(on, address)
    settings = config.override(Preparation(), overrides or [])
    with progress() as tick:
        try:
            found = prepare(settings, source, folder, tick=tick, check=check, cluster=cluster)
        except KeyboardInterrupt as stopped:
            stopped.add_note(RESUMES)
            raise
    if as_json:
        print_json(found)
        return
    for line in lines(found):
        screen.print(escape(line), highlight=False, soft_wrap=True)


def lines(found: Mapping[str, Any]) -> list[str]:
    """What a preparation has come to, in words."""
    said = [
        f"{split}: {found[f'{split}_tokens']:,} tokens of {found[f'{split}_documents']:,} documents"
        for split in ("train", "validation")
    ]
    said.append(
        f"tokenizer: {found['tokenizer']}, {found['vocabulary']:,} tokens; "
        f"{found['text_bytes'] / 1e6:,.1f} MB of text"
    )
    for why, count in found["left_out"].items():
        said.append(f"left out: {count:,} documents {why}")
    if found["left_out_files"]:
        said.append(f"left out: {found['left_out_files']:,} files of no known kind")
    if found["validation_documents"] == 0:
        said.append("no document fell to validation: training will not be evaluated")
    if found["encoded_bytes"]:
        rate = found["encoded_bytes"] / found["seconds"] / 1e6
        said.append(
            f"took {found['seconds']:,.1f} s: {rate:,.1f} MB/s by {found['workers']} processes, "
            f"which had {found['peak_bytes'] / 1e6:,.0f} MB in memory at most, this one among them"
        )
    else:
        said.append("it was prepared before, and nothing had to be done")
    said.append(f"train on it: attnlab train tiny data={found['folder']}")
    return said
