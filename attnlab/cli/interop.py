"""Verbs to and from folders of transformers: export and import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab.cli.app import AsJson, Runs, app, errors, print_json, screen
from attnlab.cli.models import Which
from attnlab.printable import printable

if TYPE_CHECKING:
    from attnlab.interop.parity import Parity


@app.command("export", epilog="Example: attnlab export tiny my-model")
def export_run(
    run: Which,
    folder: Annotated[Path, typer.Argument(help="Where to write it; not there yet.")],
    family: Annotated[
        str,
        typer.Option("--as", help="A model type of transformers; auto: the plainest that fits."),
    ] = "auto",
    root: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a folder that transformers loads, proved to compute the same.

    The proof runs in a process that has transformers alone: logits in float64, greedy texts with
    and without a KV cache and in a left-padded batch, the tokenizer. Without it nothing is written.
    """
    from attnlab.interop.exporting import export
    from attnlab.training.saved import open_saved

    saved = open_saved(str(run), root, "cpu")
    for reason in saved.broken:
        errors.print(f"skipped: {escape(reason)}", highlight=False, soft_wrap=True)
    errors.print("comparing with transformers …", highlight=False)
    made = export(saved, folder, family=family)
    if as_json:
        print_json(
            {
                "folder": str(made.folder),
                "model_type": made.model_type,
                "bytes": made.bytes,
                "parity": made.parity.to_json(),
            }
        )
        return
    said = f"{made.folder}: {made.parity.architecture}, {made.bytes / 1e6:,.1f} MB"
    screen.print(escape(printable(said, keep="")), highlight=False, soft_wrap=True)
    _show(made.parity)


@app.command("import", epilog="Example: attnlab import path/to/gpt2")
def import_folder(
    folder: Annotated[Path, typer.Argument(help="A folder that save_pretrained has written.")],
    prove: Annotated[bool, typer.Option("--proof/--no-proof", help="Compare both models.")] = True,
    root: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Make a run of a folder of transformers, proved to compute the same.

    Nothing in the folder is executed: JSON and safetensors are read. start=FOLDER and attnlab
    generate FOLDER take such a folder as it is.
    """
    from attnlab.interop import importing

    if prove:
        errors.print("comparing with transformers …", highlight=False)
    made = importing.import_folder(folder, root, prove=prove)
    if as_json:
        parity = made.parity.to_json() if made.parity else {"holds": None, "why": made.why}
        found = {"run": made.run.folder.name, "parameters": made.parameters, "parity": parity}
        print_json(found)
        return
    said = f"{made.run.folder}: {made.parameters:,} parameters"
    screen.print(escape(printable(said, keep="")), highlight=False, soft_wrap=True)
    if made.parity is None:
        screen.print(f"not compared with transformers: {made.why}", highlight=False)
    else:
        _show(made.parity)
    say = f"attnlab generate {made.run.folder} --prompt ..."
    screen.print(f"try it: {escape(printable(say, keep=''))}", highlight=False, soft_wrap=True)


def _show(parity: "Parity") -> None:
    texts = "the same greedy texts, with and without a KV cache and in a left-padded batch"
    ids = "" if parity.tokenizer is None else "; the same ids and text of the tokenizer"
    said = (
        f"the same as in transformers {parity.transformers}: logits to {parity.logits:.1e} of the "
        f"largest in float64 ({parity.float32:.1e} in float32); {texts}{ids}"
    )
    screen.print(said, highlight=False, soft_wrap=True)
    for one in parity.unreached:
        more = f"texts beyond a {one} were not compared: they would take too long"
        screen.print(more, highlight=False, soft_wrap=True)
