"""`attnlab list`: kinds of options, the options of a kind, the settings of an option."""

import dataclasses
import inspect
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from attnlab import config, registry
from attnlab.cli.app import AsJson, app, print_json, screen

# what people call several kinds at once, or one in the plural
GROUPS = {
    "attention": ["attention", "score", "cache"],
    "models": ["model"],
    "presets": ["preset"],
    "corpora": ["corpus", "tokenizer", "objective"],
    "optimisers": ["optimiser"],
    "claims": ["claim"],
    "properties": ["property"],
    "caches": ["protocol"],
    "studies": ["study"],
    "checks": ["check"],
    "benches": ["bench"],
}
# settings of a verb that has no options to choose from
COMPARE = registry.Option(
    "compare",
    "",
    "attnlab.compare.parse:ComparisonSettings",
    "how variants are compared, as in attnlab compare lab seeds=5",
)


@app.command(
    "list",
    epilog="Example: attnlab list · attnlab list positions · attnlab list model.transformer · "
    "attnlab list compare",
)
def list_options(
    what: Annotated[
        str, typer.Argument(help="A kind, such as positions, or an option, such as preset.tiny.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what can be chosen by name: the kinds, the options of a kind, the settings of one."""
    first, dot, name = what.partition(".")
    if not what:
        _show_kinds(as_json)
    elif what == COMPARE.kind:
        from attnlab.compare.parse import ComparisonSettings

        _show_settings(COMPARE, ComparisonSettings, as_json)
    elif dot:
        option = registry.find(_kinds(first)[0], name)
        _show_settings(option, registry.load(option.kind, option.name), as_json)
    else:
        _show_options(_kinds(first), as_json)


def _kinds(word: str) -> list[str]:
    if word in GROUPS:
        return GROUPS[word]
    if word not in registry.kinds():
        kinds = registry.kinds()
        every = [f"{kind}.{one.name}" for kind in kinds for one in registry.options(kind)]
        known = [*kinds, COMPARE.kind]
        raise ValueError(f"unknown kind {word!r}; {registry.suggest(word, known, every)}")
    return [word]


def _show_kinds(as_json: bool) -> None:
    kinds = registry.KINDS.items()
    if as_json:
        print_json(
            [
                {
                    "kind": name,
                    **dataclasses.asdict(kind),
                    "options": [vars(option) for option in registry.options(name)],
                }
                for name, kind in kinds
            ]
        )
        return
    table = Table("kind", "options", "what they are", "example", box=None, header_style="bold")
    for name, kind in kinds:
        count = str(len(registry.options(name)))
        table.add_row(f"[cyan]{name}[/]", count, escape(kind.about), escape(kind.example))
    screen.print(table)
    screen.print(
        "attnlab list KIND shows the options, attnlab list KIND.NAME the settings of one",
        highlight=False,
    )


def _show_options(kinds: list[str], as_json: bool) -> None:
    found = [option for kind in kinds for option in registry.options(kind)]
    if as_json:
        print_json([vars(option) for option in found])
        return
    table = Table("option", "summary", box=None, header_style="bold")
    for option in found:
        table.add_row(_named(option), escape(_summary(option)))
    screen.print(table)


def _show_settings(option: registry.Option, target: Any, as_json: bool) -> None:
    # a preset is a whole recipe; of any other option, what is chosen inside is listed by itself
    fields = config.describe(target(), chosen=option.kind == "preset")
    if as_json:
        described = [dataclasses.asdict(field) for field in fields]
        print_json({**vars(option), "settings": described})
        return
    title = f"{_named(option)}: {escape(_summary(option))}"
    screen.print(title, highlight=False, soft_wrap=True)
    for line in _own_docstring(target):
        screen.print(escape(line), highlight=False)
    if not fields:
        screen.print("It has no settings.", highlight=False)
        return
    name = Column("setting", no_wrap=True)
    table = Table(name, "default", "values", "meaning", box=None, header_style="bold")
    for field in fields:
        cells = (field.default or "(empty)", field.values, field.about)
        table.add_row(f"[cyan]{field.key}[/]", *map(escape, cells))
    screen.print(table)


def _named(option: registry.Option) -> str:
    """As it is written: a setting as positions=alibi, anything else as this verb takes it."""
    kind = registry.KINDS.get(option.kind)
    join = "=" if kind is not None and f"{option.kind}=" in kind.example else "."
    name = f"{join}[cyan]{escape(option.name)}[/]" if option.name else ""
    return f"{option.kind}{name}"


def _summary(option: registry.Option) -> str:
    foreign = option.origin != "attnlab"
    return f"{option.summary} (from {option.origin})" if foreign else option.summary


def _own_docstring(target: Any) -> list[str]:
    """First what it is, then line by line, an indented one after the one it belongs to."""
    first, _, rest = inspect.cleandoc(target.__doc__ or "").partition("\n\n")
    if first.startswith(f"{target.__name__}("):  # which dataclasses write, of their fields
        return []
    lines = rest.replace("\n  ", " ").split("\n")
    return [line for line in (" ".join(first.split()), *lines) if line]
