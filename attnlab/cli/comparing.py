"""The verb compare: variants of a model, trained and judged."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from attnlab.api.comparing import prepare
from attnlab.cli.app import SETTINGS, AsJson, Runs, app, errors, print_json
from attnlab.cli.dry_run import DryRun, show_experiment, show_variants
from attnlab.cli.experiments import carry_out_here, show
from attnlab.cli.places import Address, On, Processes


@app.command(
    context_settings=SETTINGS,
    epilog="Example: attnlab compare lab · attnlab compare learned=tiny:model.positions=learned "
    "rotary=tiny tiny:model.window=16,none match=flops seeds=5",
)
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            help=escape("Variants as [label=]preset[:key=value,…], and settings as key=value."),
            metavar="VARIANT... KEY=VALUE...",
        ),
    ],
    on: On = "local",
    address: Address = None,
    processes: Processes = None,
    root: Runs = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Do all of it anew.")] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Compare variants fairly: same text, same batches, same budget, several seeds.

    Writes report.html, report.md and results.json. Stop it at any time: the same command resumes.
    Settings, such as match=flops and seeds=5: attnlab list compare. Those of a preset, such as
    steps=200, apply to all variants: attnlab list preset.tiny.
    """
    comparison, command = prepare(words, on=on, address=address, processes=processes)
    if dry_run:
        show_variants(comparison.forecast(), comparison.chosen.match)
        show_experiment("", comparison, root=root, again=again)
        return
    record = carry_out_here("", comparison, command, root=root, again=again)
    if as_json:
        print_json(record.results)
    else:
        show(record, _table(record.results))
    if record.lacking:
        errors.print(
            f"[bold red]failed:[/] {escape(record.lacking)}; the same command tries again",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _table(results: dict[str, Any]) -> Table:
    whole = ("variant", "above the best", "parameters")
    columns = ("variant", "loss", "above the best", "parameters", "ms a step", "MB a step")
    table = Table(
        *(Column(name, no_wrap=name in whole) for name in (*columns, "decode tokens/s")),
        box=None,
        header_style="bold",
    )
    for label, found in results["variants"].items():
        measured, loss = results["measured"][label], found["loss"]
        memory, decoding = measured["memory_bytes"], measured["decode_tokens_per_second"]
        table.add_row(
            escape(label),
            "–" if loss is None else f"{loss['mean']:.3f}",
            "–" if (lead := found["above_best"]) is None else _ends(lead),
            f"{found['parameters']:,}",
            f"{measured['step_ms']:.3g}",
            "–" if memory is None else f"{memory / 1e6:.3g}",
            "–" if decoding is None else f"{decoding:,.0f}",
        )
    return table


def _ends(interval: dict[str, Any]) -> str:
    if interval["low"] is None:
        return f"{interval['mean']:.3f}"
    return f"{interval['mean']:.3f} ± {interval['high'] - interval['mean']:.3f}"
