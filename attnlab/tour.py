"""The quick tour of `make lab`: every part at work once, each held against its definition."""

import time
from collections.abc import Iterator
from itertools import product

import torch
from rich.console import Console
from rich.table import Table

from attnlab import config, registry
from attnlab.bench import table, window
from attnlab.kernels import attention
from attnlab.kernels.dispatch import PATHS
from attnlab.kernels.request import Request, visible
from attnlab.models.transformer import TransformerSettings


def walk(screen: Console) -> bool:
    """Show everything; False when something did not equal its definition."""
    screen.print("[bold]attnlab[/]: a quick tour, about half a minute\n")
    start = time.monotonic()
    _show_mask(screen)
    fine = _show_paths(screen)
    fine &= _show_models(screen)
    fine &= _show_speed(screen)
    seconds = time.monotonic() - start
    verdict = (
        "everything equals its definition" if fine else "[red]something is wrong: see above[/]"
    )
    screen.print(f"{verdict}; {seconds:.0f} s. Next: attnlab list, attnlab bench window, README.md")
    return fine


def _show_mask(screen: Console) -> None:
    screen.print("[bold]1. A window of 3 keys[/], the query's own included: who sees whom")
    t = torch.arange(6)
    for row in visible(t, t, causal=True, window=3):
        screen.print("   " + " ".join("[cyan]■[/]" if seen else "·" for seen in row))
    screen.print()


def _show_paths(screen: Console) -> bool:
    screen.print("[bold]2. One function, several paths[/]: largest difference from the definition")
    chance = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 301, 48, generator=chance) for h in (6, 2, 2))
    request = Request(q=q, k=k, v=v, window=70)
    exact = attention(q.double(), k.double(), v.double(), window=70, path="reference")
    grid = Table("path", "error", "", box=None, header_style="bold")
    fine = True
    for name, path in PATHS.items():
        reason = path.refusal(request)
        if reason is None and name != "flex":  # compiling FlexAttention would take the tour's time
            error = float((attention(q, k, v, window=70, path=name) - exact).abs().max())
            fine &= error < 1e-5
            grid.add_row(name, f"{error:.1e}", "ok" if error < 1e-5 else "[red]wrong[/]")
        elif reason:
            grid.add_row(name, "–", reason)
    screen.print(grid)
    screen.print()
    return fine


def _show_models(screen: Console) -> bool:
    screen.print(
        "[bold]3. Every score with every position scheme[/], as a small transformer (grouped, "
        "windows 5 and none):\n   token by token through the caches against the whole text at once"
    )
    schemes = _schemes()
    grid = Table("", *schemes, box=None, header_style="bold")
    errors = dict(_cache_errors())
    for score in (option.name for option in registry.options("score")):
        grid.add_row(score, *(f"{errors[score, scheme]:.0e}" for scheme in schemes))
    screen.print(grid)
    screen.print()
    return all(error < 1e-10 for error in errors.values())


def _schemes() -> list[str]:
    """Those that are meant, without the mistakes kept as controls."""
    meant = "attnlab.attention.positions:"
    return [o.name for o in registry.options("positions") if o.target.startswith(meant)]


def _cache_errors() -> Iterator[tuple[tuple[str, str], float]]:
    torch.manual_seed(0)
    base = TransformerSettings(vocabulary=11, context=32, width=32, depth=2, window=(5, None))
    scores = [option.name for option in registry.options("score")]
    for score, scheme in product(scores, _schemes()):
        words = [f"score={score}", f"positions={scheme}", "attention=grouped"]
        model = config.override(base, words).build().double().eval()
        tokens = torch.randint(11, (2, 23))
        cache = model.new_cache()
        with torch.no_grad():
            steps = [model(token, cache=cache) for token in tokens.split(1, dim=1)]
            error = (torch.cat(steps, dim=1) - model(tokens)).abs().max()
        yield (score, scheme), float(error)


def _show_speed(screen: Console) -> bool:
    screen.print(
        "[bold]4. Speed[/]: our sliding window against a dense mask (attnlab bench window)"
    )
    settings = window.WindowBench(
        lengths=(2048, 4096), windows=(256,), turns=5, patience=3, device="cpu", flex=False
    )
    report = window.run(settings)
    table.show(report, screen)
    screen.print()
    return not any(row["wrong"] for row in report["rows"])
