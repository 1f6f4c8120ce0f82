"""`--on`, `--address` and `--processes`: where the work of a verb is done."""

from typing import Annotated

import typer

On = Annotated[str, typer.Option(help="Where the work is done: local or ray.")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster; else RAY_ADDRESS, or one that is here.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Trainings at a time, on GPUs of a cluster on each; "
        "else as many as cores, and on a GPU one.",
        min=1,
    ),
]
