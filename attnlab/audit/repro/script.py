"""A failure as a script that needs torch, what is audited, and nothing of this package.

What compares (`audit/repro/comparing.py`, `audit/repro/looking.py`) is printed into it, and so
is the stage that the code was put on.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attnlab.audit.contract import Finding
from attnlab.audit.probe import identify, watch
from attnlab.audit.properties import packing
from attnlab.audit.repro import looking
from attnlab.audit.repro import prelude as printed
from attnlab.audit.repro.stage import Stage, tools_of

# Each is imported, or printed, where it is named.
IMPORTS = {
    "copy": "import copy",
    "importlib": "import importlib.util",
    "inspect": "import inspect",
    "math": "import math",
    "os": "import os",
    "re": "import re",
    "sys": "import sys",
    "Iterator": "from collections.abc import Iterator",
    "contextmanager": "from contextlib import contextmanager, nullcontext",
    "dataclass": "from dataclasses import dataclass",
    "Path": "from pathlib import Path",
    "Any": "from typing import Any",
}
TORCH_IMPORTS = {
    "torch": "import torch",
    "Tensor": "from torch import Tensor",
    "sdpa_kernel": "from torch.nn.attention import SDPBackend, sdpa_kernel",
    "TorchFunctionMode": "from torch.overrides import TorchFunctionMode",
    "TorchDispatchMode": "from torch.utils._python_dispatch import TorchDispatchMode",
}
PRINTED = (
    *(printed.loaded, printed.prepared, printed.drawn, printed.tensor_in, printed.filled),
    *(printed.added, printed.kept_in, printed.moved, printed.replaced, packing.told),
    *(identify.Applied, watch._Watch, watch.Folded, watch.folding, watch.spread, watch.Einsums),
    *(watch.Watch, identify.grain, identify._stretch, identify._after, identify.scale_seen),
    *(looking.looked, looking.turned_otherwise),
)
CONSTANTS = {"CACHES": f'CACHES = re.compile(r"{printed.CACHES.pattern}")'}


def script(
    stage: Stage,
    finding: Finding,
    fails: Callable[..., tuple[bool, str]],
    sizes: Mapping[str, Any],
    tolerance: float,
) -> str:
    """Builds the stage, compares, and tells by its exit code."""
    tools = tools_of(fails)
    heading = stage.heading(tools)
    given = ", ".join(f"{key}={value!r}" for key, value in sizes.items())
    detail = " ".join(finding.detail.split()).replace("\\", "/").replace('"', "'")
    ending = f"""
def broken_down(*error: Any) -> None:
    sys.__excepthook__(*error)
    os._exit(2)  # 1 would mean that it is still wrong


sys.excepthook = broken_down
{heading.making}


{stage.text(tools)}


torch.manual_seed(0)
fails, sentence = {fails.__name__}(
    {", ".join(tools)},
    {given},
    tolerance=TOLERANCE,
)
print(("wrong: " if fails else "mended: ") + sentence)
sys.exit(1 if fails else 0)
"""
    sources = [inspect.getsource(fails).rstrip()]
    sources = [*_needed([*stage.printed(), *PRINTED], [*sources, ending]), *sources]
    names = named([*sources, ending])
    constants = [heading.constants]
    constants += [line for name, line in CONSTANTS.items() if name in names - named(constants)]
    constants += [f"TOLERANCE = {tolerance!r}  # what rounding explains; more is a difference"]
    names |= named(constants)
    standard, of_torch = (
        "\n".join(line for name, line in every.items() if name in names)
        for every in (IMPORTS, TORCH_IMPORTS)
    )
    heading_text = f'''"""{heading.title}, {finding.name}: {detail}

    python {script_name(stage.target, finding.name)} {heading.usage}

{inspect.getdoc(fails)}

Exit code 1 while it is so, 0 once it is mended, 2 if the code is not found or breaks down.
Needs {heading.needs}.
"""'''
    body = "\n\n\n".join(["\n".join(constants), *sources])
    return f"{heading_text}\n\n{standard}\n\n{of_torch}\n\n{body}\n\n{ending}"


def named(texts: Iterable[str]) -> set[str]:
    """Every name that is used in these."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _needed(printed: Iterable[Any], texts: Iterable[str]) -> list[str]:
    """Sources of what the texts name, and of what those name in turn, in the given order."""
    sources = {one.__name__: inspect.getsource(one).rstrip() for one in printed}
    wanted: set[str] = set()
    new = named(texts) & sources.keys()
    while new:
        wanted |= new
        new = named(sources[one] for one in new) & sources.keys() - wanted
    return [source for name, source in sources.items() if name in wanted]


def script_name(target: str, finding: str) -> str:
    name = Path(target.rpartition(":")[2]).name  # of a saved model, its folder's
    return f"{name}_{finding.replace(' ', '_')}.py"
