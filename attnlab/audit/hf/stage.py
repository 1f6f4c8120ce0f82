"""A stage for models of `transformers`: built as the audit built them, here and in a script.

In float32 first, where a script is the least that shows a failure. What is too small to be seen
there is shown in float64, with what makes the library compute in it throughout.

Axes: b batch, t time, v vocabulary.
"""

import os
import pprint
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attnlab.audit.hf import running as hf_running
from attnlab.audit.hf.running import in_float64, quiet, running, step_logits
from attnlab.audit.hf.subject import HuggingFace
from attnlab.audit.repro.prelude import drawn, prepared
from attnlab.audit.repro.stage import TOOLS, Heading, Stage, Stepping, _function, tools_of
from attnlab.audit.subject.adapters import HEADS, KV_HEADS, LAYERS
from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.calls import Call, record

CALLS = ("ask", "other", "tell", "step")
WIDTH = 96  # columns of a script's constants
RUNNING = (
    hf_running.positions_behind,
    hf_running.first_cache,
    step_logits,
    hf_running.Float64,
    in_float64,
    running,
)
EXACT = ("precision",)  # what float64 is compared with


def built(folder: str, name: str, sizes: dict[str, Any], **how: Any) -> Any:
    """The model that is saved in a folder, or else a new one of this class and these sizes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    how["experts_implementation"] = "eager"  # the others do not compute in float64
    if folder:
        if not (Path(folder) / "config.json").is_file():
            print(f"no config.json in {folder}; give the folder of a saved model")
            sys.exit(2)
        how |= {"local_files_only": True, "use_safetensors": True}
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **how)
    torch.manual_seed(0)
    model = getattr(transformers, name)
    return model._from_config(model.config_class(**sizes), **how)


@dataclass(frozen=True, kw_only=True)
class ModelStage(Stage):
    """`options` are the sizes of its configuration; none if it is read from a folder."""

    name: str
    folder: str = ""
    implementation: str | None = None
    backends: tuple[str, ...] = ()  # the usual one, and the one that it is compared with
    masked: bool = False
    prepares: bool = True
    own: torch.dtype = torch.float64  # that the audit had it in

    def tools(self, fails: Callable[..., Any]) -> list[Any]:
        """As others, and quiet."""
        names = tools_of(fails)
        found = zip(names, super().tools(fails), strict=True)
        return [quiet()(one) if name in CALLS else one for name, one in found]

    def known(self) -> dict[str, Any]:
        return {**TOOLS, "step_logits": step_logits, "running": running}

    def printed(self) -> tuple[Any, ...]:
        return (built, *RUNNING)

    def ways(self, finding: str, tolerance: float) -> Iterator[tuple[Stage, float]]:
        if self.own is not torch.float64:
            yield self, tolerance
            return
        if finding not in EXACT:
            wider = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
            yield self, tolerance * wider
        decorators = (*self.decorators, "@running(code)")
        yield replace(self, dtype=torch.float64, decorators=decorators).again(), tolerance

    def as_met(self, met: Mapping[str, Any]) -> Stage:
        return replace(self, backends=tuple(met["backends"])) if "backends" in met else self

    def again(self) -> "ModelStage":
        how = {"attn_implementation": self.implementation, "dtype": self.dtype}
        wide = in_float64() if self.dtype is torch.float64 else nullcontext()
        with quiet(), torch.random.fork_rng(devices=[]), wide:
            code = built(self.folder, self.name, dict(self.options), **how)
        return replace(self, code=prepared(code, self.dtype))

    def with_less(self, names: Sequence[str], less: int, wide: bool) -> "Stage | None":
        name = next((one for one in names if type(self.options.get(one)) is int), None)
        if names not in (LAYERS, HEADS, KV_HEADS) or name is None or less >= self.options[name]:
            return None
        return replace(self, options={**self.options, name: less}).again()

    def heading(self, tools: Sequence[str]) -> Heading:
        import transformers

        version = f"transformers {transformers.__version__}"
        wide, steps = self.dtype is torch.float64, "step" in tools
        what = f"the model in {self.folder}" if self.folder else f"{self.name} of {version}"
        sizes = pprint.pformat(dict(self.options), width=WIDTH, compact=True, sort_dicts=False)
        constants = [f"FOLDER = {self.folder!r}  # of a saved model; without one it is made anew"]
        constants += [f"NAME = {self.name!r}", f"SIZES: dict[str, Any] = {sizes}"]
        constants += [f"CACHES = {pprint.pformat(hf_running.CACHES, width=WIDTH)}"] * steps
        how = f"attn_implementation={self.implementation!r}, dtype={self.dtype}"
        making = ["FOLDER = (sys.argv[1:] or [FOLDER])[0]"]
        making += ["with in_float64():"] * wide
        making += ["    " * wide + f"code = built(FOLDER, NAME, SIZES, {how})"]
        making += [f"prepared(code, {self.dtype})"]
        return Heading(
            title=what,
            usage="[folder of another saved model]",
            needs=f"torch and transformers; seen with {version}",
            constants="\n".join(constants),
            making="\n".join(making),
        )

    def _otherwise(self) -> list[str]:
        usual, backend = self.backends
        body = ["with torch.compiler.set_stance('force_eager'):  # faster for so few inputs"]
        body += [f"    code.set_attn_implementation({backend!r})", "    try:"]
        body += ["        return ask(x, padding)", "    finally:"]
        body += [f"        code.set_attn_implementation({usual!r})"]
        return _function("other(x: Any, padding: Any = None)", body)

    def _stepping(self) -> list[str]:
        step = [f"return step_logits(code, x, cache, padding, {self.masked}, {self.prepares})"]
        return [
            *_function("new_cache()", ["return {}"]),
            *_function("step(x: Any, cache: Any, padding: Any = None)", step, self.decorators),
        ]


def for_model(subject: Subject, target: str, options: Mapping[str, Any]) -> ModelStage:
    """The stage for a model that the audit had as this subject."""
    assert isinstance(subject, HuggingFace) and subject.module is not None
    how = subject.convention
    stage = ModelStage(
        target=target,
        options=how.sizes,
        code=None,
        dtype=torch.float32,
        width=subject.width,
        tokens=True,
        asking=Call(),
        stepping=Stepping(call=Call()) if subject.caches else None,
        name=type(subject.module).__name__,
        folder=how.folder,
        implementation=options.get("attn_implementation"),
        masked=subject.pads,
        prepares=how.prepares,
        own=subject.dtype,
    )
    x = drawn((2, 5), subject.width, 0, torch.float32)
    asking = record(subject.module, partial(subject.run, x), {}, x=x)
    padded = None
    if subject.pads:
        padding = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
        run = partial(subject.run, x, padding=padding)
        padded = record(subject.module, run, {}, x=x, padding=padding)
    return replace(stage, asking=asking, padded=padded).again()
