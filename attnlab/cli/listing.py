"""`attnlab list`: kinds of options, the options of a kind, the settings of an option."""

import dataclasses
import importlib
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
    "causes": ["cause"],
    "checks": ["check"],
    "benches": ["bench"],
}
# settings of a verb, beside what it has options to choose from
VERBS = {
    "train": registry.Option(
        "train",
        "",
        "attnlab.training.recipe:Recipe",
        "how a model is trained, as in attnlab train tiny steps=200",
    ),
    "compare": registry.Option(
        "compare",
        "",
        "attnlab.compare.parse:ComparisonSettings",
        "how variants are compared, as in attnlab compare lab seeds=5",
    ),
    "prepare": registry.Option(
        "prepare",
        "",
        "attnlab.data.prepared.preparation:Preparation",
        "how large text becomes tokens, as in attnlab prepare SOURCE FOLDER validation=0.02",
    ),
}
SETTINGS = "settings"


@app.command(
    "list",
    epilog="Example: attnlab list · attnlab list positions · attnlab list model.transformer · "
    "attnlab list settings · attnlab list settings optimiser",
)
def list_options(
    what: Annotated[
        str,
        typer.Argument(help="A kind, such as positions; an option, such as preset.tiny; settings."),
    ] = "",
    of: Annotated[
        str,
        typer.Argument(help="After settings: a kind, option or verb, or one setting; none: all."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what can be chosen by name: the kinds, the options of a kind, the settings of one.

    attnlab list settings shows every setting with its default, type, range and meaning.
    """
    if of and what != SETTINGS:
        raise ValueError(f"{of!r} is too much; write attnlab list {what} or attnlab list settings")
    if not what:
        _show_kinds(as_json)
    elif what == SETTINGS:
        _show_all_settings(_options(of) if of and _is_place(of) else _all_options(), as_json, of)
    elif what in VERBS or "." in what or "=" in what:
        found = _options(what)
        if len(found) == 1:
            _show_settings(found[0], as_json)
        else:
            _show_options([found[0].kind], as_json)
    else:
        _show_options(_kinds(what), as_json)


def _is_place(word: str) -> bool:
    """Whether a word says whose settings are meant; else it is the name of one."""
    return word in (*VERBS, *GROUPS, *registry.kinds()) or not word.isidentifier()


def _options(what: str) -> list[registry.Option]:
    """A verb's settings as one option; an option by its kind and name; all of a kind."""
    first, dot, name = what.replace("=", ".").partition(".")
    if what in VERBS:
        return [VERBS[what]]
    if ":" in what and first not in registry.kinds():
        raise ValueError(
            f"{what} is code of your own, which can stand in for {', '.join(registry.OWN)}; "
            f"write what it is: attnlab list attention.{what}"
        )
    if dot:
        kind = _kinds(first)[0]
        if name in registry.kinds() and name not in {one.name for one in registry.options(kind)}:
            return registry.options(name)  # model.attention, as settings have it
        return [registry.find(kind, name)]
    return [option for kind in _kinds(first) for option in registry.options(kind)]


def _all_options() -> list[registry.Option]:
    """Without presets, whose settings are those of `train` and of what it chooses."""
    kinds = [kind for kind in registry.kinds() if kind != "preset"]
    return [*VERBS.values(), *(one for kind in kinds for one in registry.options(kind))]


def _kinds(word: str) -> list[str]:
    if word in GROUPS:
        return GROUPS[word]
    if word not in registry.kinds():
        kinds = registry.kinds()
        every = [f"{kind}.{one.name}" for kind in kinds for one in registry.options(kind)]
        known = [*kinds, *VERBS, SETTINGS]
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
        "attnlab list KIND shows the options, attnlab list KIND.NAME the settings of one, "
        "attnlab list settings all settings",
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
    commands = " · ".join(f"attnlab list settings {kind}" for kind in kinds)
    screen.print(f"[dim]their settings: {commands}[/]", highlight=False)


def _load(option: registry.Option) -> object:
    if option in VERBS.values():
        module, _, name = option.target.partition(":")
        return getattr(importlib.import_module(module), name)
    return registry.load(option.kind, option.name)


def _fields(option: registry.Option, target: Any) -> list[config.Description]:
    """A preset is a whole recipe; what is chosen in any other option is listed by itself."""
    return config.describe(target(), chosen=option.kind == "preset")


def _plain(option: registry.Option, fields: list[config.Description]) -> dict[str, Any]:
    return {**vars(option), "settings": [dataclasses.asdict(field) for field in fields]}


def _show_all_settings(options: list[registry.Option], as_json: bool, of: str) -> None:
    described = [(option, _fields(option, _load(option))) for option in options]
    if of.isidentifier() and not _is_place(of):
        known = {field.key for _, fields in described for field in fields}
        described = [
            (option, [field for field in fields if field.key == of]) for option, fields in described
        ]
        described = [(option, fields) for option, fields in described if fields]
        if not described:
            kinds = [*registry.kinds(), *VERBS]
            advice = registry.suggest(of, sorted({*known, *kinds}))
            raise ValueError(f"{of!r} is no kind and no setting; {advice}")
    if as_json:
        print_json([_plain(option, fields) for option, fields in described])
        return
    for option, fields in described:
        if fields or len(options) == 1:
            screen.print(_title(option), highlight=False, soft_wrap=True)
            _show_fields(fields)
            screen.print()
    count = sum(len(fields) for _, fields in described)
    screen.print(f"{count} settings", highlight=False)


def _show_settings(option: registry.Option, as_json: bool) -> None:
    target = _load(option)
    fields = _fields(option, target)
    if as_json:
        print_json(_plain(option, fields))
        return
    screen.print(_title(option), highlight=False, soft_wrap=True)
    for line in _own_docstring(target):
        screen.print(escape(line), highlight=False)
    _show_fields(fields)
    if option.code:
        _show_taken(option, target)


def _show_taken(option: registry.Option, target: Any) -> None:
    """What a person's code takes, by its source; what the laboratory knows need not be given."""
    from attnlab.code.own import NAMES
    from attnlab.code.signature import taken

    known = {*NAMES, *NAMES.values()}
    words = [
        f"{target.key}.{one.name}={one.default or '…'}"
        for one in taken(option.code)
        if one.name not in known
    ]
    if words:
        said = f"settings of the code itself, as its source has them: {' '.join(words)}"
        screen.print(escape(said), highlight=False, soft_wrap=True)


def _title(option: registry.Option) -> str:
    return f"{_named(option)}: {escape(_summary(option))}"


def _show_fields(fields: list[config.Description]) -> None:
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
