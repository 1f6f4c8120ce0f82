"""attnlab: a laboratory for attention in language models.

    import attnlab

    run = attnlab.train("tiny", steps=200)       a model, trained
    attnlab.generate(run, "The ")                text that it writes
    attnlab.evaluate(run)                        its loss on the text that was kept apart
    attnlab.attention(run, "The same text")      who attends to whom, in every head
    attnlab.compare("tiny", "tiny:model.positions=learned")     which variant is better
    attnlab.claim("copy", lead=3)                a sentence of the theory, tested
    attnlab.audit("mine.py:Mine", width=32, declare={"causal": True})
    attnlab.runs()                               what was trained here

Each does what the command of that name does. Results show themselves in a notebook. What a person
can mend is an `attnlab.Error` of one line. To import the package loads no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.api.auditing import Audit as Audit
    from attnlab.api.auditing import audit as audit
    from attnlab.api.comparing import Comparison as Comparison
    from attnlab.api.comparing import compare as compare
    from attnlab.api.looking import Attention as Attention
    from attnlab.api.looking import Head as Head
    from attnlab.api.looking import attention as attention
    from attnlab.api.theory import Claim as Claim
    from attnlab.api.theory import claim as claim
    from attnlab.api.training import Runs as Runs
    from attnlab.api.training import Training as Training
    from attnlab.api.training import runs as runs
    from attnlab.api.training import train as train
    from attnlab.api.using import Evaluation as Evaluation
    from attnlab.api.using import Texts as Texts
    from attnlab.api.using import evaluate as evaluate
    from attnlab.api.using import generate as generate
    from attnlab.errors import Error as Error
    from attnlab.errors import Interrupt as Interrupt

__version__ = "0.1.0"
WINDOWS = "attnlab runs on Linux and macOS; on Windows, install it inside WSL (wsl --install)"
_HOMES = {
    "api.auditing": ("audit", "Audit"),
    "api.comparing": ("compare", "Comparison"),
    "api.looking": ("attention", "Attention", "Head"),
    "api.theory": ("claim", "Claim"),
    "api.training": ("train", "runs", "Training", "Runs"),
    "api.using": ("evaluate", "generate", "Evaluation", "Texts"),
    "errors": ("Error", "Interrupt"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
# functions that are named like a module: both are there under that name
_MODULES = {"attention", "audit", "compare", "evaluate", "generate"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return _load(name)


def _load(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names to use, and no helpers of this file."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class _CallableModule(ModuleType):
    """`attnlab.audit` is a package, `attnlab.audit.Certificate` a class in it; and
    `attnlab.audit(…)` is the function of `attnlab.api`."""

    def __call__(self, *given: Any, **named: Any) -> object:
        return self._function()(*given, **named)

    def __getattr__(self, name: str) -> object:
        """What `help` and an editor ask for, as of the function."""
        if name in ("__signature__", "__wrapped__"):
            import inspect

            function = self._function()
            return function if name == "__wrapped__" else inspect.signature(function)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _function(self) -> Any:
        return _load(self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """A module that is imported becomes an attribute of its package."""
        if name in _MODULES and isinstance(value, ModuleType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
