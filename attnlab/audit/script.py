"""A failure as a script that needs torch, what is audited, and nothing of this package.

What compares (`attnlab/audit/comparing.py`, `attnlab/audit/looking.py`) is printed into it, and so
is the stage that the code was put on.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.audit.contract import Finding
from attnlab.audit.stage import Stage, tools_of

IMPORTS = {  # and the sign that a script needs them
    "copy.": "import copy",
    "importlib.": "import importlib.util",
    "inspect.": "import inspect",
    "math.": "import math",
    "Iterator[": "from collections.abc import Iterator",
    "@contextmanager": "from contextlib import contextmanager, nullcontext",
    "@dataclass": "from dataclasses import dataclass",
}
TORCH_IMPORTS = {
    "Tensor": "from torch import Tensor",
    "sdpa_kernel": "from torch.nn.attention import SDPBackend, sdpa_kernel",
    "TorchFunctionMode": "from torch.overrides import TorchFunctionMode",
    "TorchDispatchMode": "from torch.utils._python_dispatch import TorchDispatchMode",
}


def script(
    stage: Stage,
    finding: Finding,
    fails: Callable[..., tuple[bool, str]],
    sizes: Mapping[str, Any],
    tolerance: float,
    helpers: Sequence[Any] = (),
) -> str:
    """Builds the stage, compares, and tells by its exit code."""
    tools = tools_of(fails)
    heading = stage.heading(tools)
    arguments = [*tools, *(f"{key}={value!r}" for key, value in sizes.items())]
    body = "\n\n\n".join(
        inspect.getsource(one).rstrip() for one in (*heading.printed, *helpers, fails)
    )
    needed, from_torch = (
        "".join(f"{line}\n" for sign, line in every.items() if sign in body)
        for every in (IMPORTS, TORCH_IMPORTS)
    )
    detail = " ".join(finding.detail.split()).replace("\\", "/").replace('"', "'")
    return f'''"""{heading.title}, {finding.name}: {detail}

    python {script_name(stage.target, finding.name)} {heading.usage}

Exit code 1 while it is so, 0 once it is mended, 2 if the code is not found or breaks down.
Needs {heading.needs}.
"""

{needed}import os
import sys
from pathlib import Path
from typing import Any

import torch
{from_torch}
{heading.constants}
TOLERANCE = {tolerance!r}  # what rounding explains; more is a difference


{body}


def broken_down(*error: Any) -> None:
    sys.__excepthook__(*error)
    os._exit(2)  # 1 would mean that it is still wrong


sys.excepthook = broken_down
{heading.making}
{stage.text(tools)}


torch.manual_seed(0)
fails, sentence = {fails.__name__}(
    {", ".join(arguments)}, tolerance=TOLERANCE
)
print(("wrong: " if fails else "mended: ") + sentence)
sys.exit(1 if fails else 0)
'''


def script_name(target: str, finding: str) -> str:
    name = Path(target.rpartition(":")[2]).name  # of a saved model, its folder's
    return f"{name}_{finding.replace(' ', '_')}.py"
