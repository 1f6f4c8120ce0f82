"""Verbs to, from and between folders of transformers: export, import and convert."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from attnlab.cli.app import AsJson, Runs, app, errors, print_json, progress, screen
from attnlab.cli.models import Device, Which
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


@app.command(epilog="Example: attnlab convert llama interleaved rotary=interleaved")
def convert(
    folder: Annotated[Path, typer.Argument(help="Safetensors and a config.json, or such a file.")],
    place: Annotated[
        Path, typer.Argument(metavar="FOLDER2", help="Where to write; not there yet.")
    ],
    rotary: Annotated[
        str | None,
        typer.Option(help="interleaved or half-split; now it is the other."),
    ] = None,
    qkv: Annotated[
        str | None, typer.Option(help="separate, or fused: by-kind or by-group.")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="More: heads are repeated. Fewer: means of heads.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="tied to the embeddings, or untied: a copy.")
    ] = None,
    matrices: Annotated[
        str | None, typer.Option(help="in-out (GPT-2) or out-in (all others).")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Query heads, if its config.json does not say.")
    ] = None,
    rotated: Annotated[
        int | None, typer.Option(help="Coordinates of a head that turn, if not known.")
    ] = None,
    fused: Annotated[
        str | None, typer.Option(help="by-kind or by-group now, if that is not known.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Measure the held-out loss before and after.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the same weights in another layout, as another code base has them.

    Each move is undone and its bits compared before FOLDER2 is there; only fewer key/value heads
    are another function. Weights do not show which coordinates turn together: rotary=half-split
    says that they are interleaved now. What transformers makes of it is said.
    """
    from attnlab import config
    from attnlab.interop.conversion import Conversion
    from attnlab.interop.converting import convert as write_converted

    given = {"rotary": rotary, "qkv": qkv, "kv_heads": kv_heads, "head": head}
    given |= {"matrices": matrices, "heads": heads, "rotated": rotated, "fused": fused}
    words = [f"{name}={value}" for name, value in given.items() if value is not None]
    asked = config.override(Conversion(), words)
    with progress() as tick:
        made = write_converted(folder, place, asked, text=text, device=device, tick=tick)
    if as_json:
        print_json(made.to_json())
        return
    moves = ", ".join(f"{name}={value}" for name, value in made.moves.items())
    how = "the same bits when undone" if made.exact else "another function"
    _say(f"{made.folder}: {moves}; {len(made.changed):,} tensors changed, {how}")
    if made.loss is not None:
        one = made.loss
        _say(
            f"held-out loss of {one.text}, {one.tokens:,} tokens: {one.before:.4f} nats a token "
            f"before, {one.after:.4f} after"
        )
    for line in (*made.said, *(f"not copied: {one}" for one in made.not_copied)):
        _say(line)


def _say(line: str) -> None:
    screen.print(escape(printable(line, keep="")), highlight=False, soft_wrap=True)


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
