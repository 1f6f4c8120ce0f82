"""A stage for models of `transformers`: built as the audit built them, here and in a script.

A script is shorter in float32: it is tried, and kept if the case fails there too. Otherwise the
model is made and run as the audit had it, with what makes the library compute in float64.

Axes: b batch, t time, v vocabulary.
"""

import os
import pprint
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from attnlab.audit.errors import ScriptError, calling
from attnlab.audit.hf import running as hf_running
from attnlab.audit.hf.running import (
    first_cache,
    in_float64,
    loop_logits,
    pixels,
    quiet,
    running,
    step_logits,
)
from attnlab.audit.hf.subject import OURS, Model
from attnlab.audit.properties import precision
from attnlab.audit.properties.property import Case
from attnlab.audit.repro.prelude import prepare
from attnlab.audit.repro.stage import CALLS, GIVEN, TOOLS, Heading, Stage, _function
from attnlab.audit.repro.stepping import NEW_CACHE, Stepping
from attnlab.audit.subject.adapters import HEADS, KV_HEADS, LAYERS
from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.calls import Call

WIDTH = 96  # columns of a script's constants
EXACT = (precision.fails,)  # what float64 is compared with


def build_model(
    folder: str, name: str, sizes: dict[str, Any], auto: str, part: str, **how: Any
) -> torch.nn.Module:
    """The model that is saved in a folder, or else a new one of this class and these sizes; of a
    model with a decoder, that part which is meant."""
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
        model = getattr(transformers, auto).from_pretrained(folder, **how)
    else:
        torch.manual_seed(0)
        made = getattr(transformers, name)
        model = made._from_config(made.config_class(**sizes), **how)
    return getattr(model, part)() if part else model


def as_stored(code: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """In evaluation mode, and with its own weights."""
    return code.eval().to(dtype)


@dataclass(frozen=True, kw_only=True)
class ModelStage(Stage):
    """`options` are the sizes of its configuration; none if it is read from a folder."""

    name: str
    folder: str = ""
    auto: str = "AutoModelForCausalLM"
    part: str = ""
    encoder_text: Mapping[str, str] = field(default_factory=dict)  # what a decoder attends to
    implementation: str | None = None
    usual: str | None = None  # the backend that others are compared with
    other: str | None = None  # the one that is compared
    masked: bool = False
    prepares: bool = True
    drawn_in: torch.dtype = torch.float64  # the precision in which its weights were made

    def tools(self, names: Sequence[str]) -> SimpleNamespace:
        """As others, and quiet."""
        found = super().tools(names)
        loud = {name: quiet()(one) for name, one in vars(found).items() if name in CALLS}
        return SimpleNamespace(**{**vars(found), **loud})

    def known(self) -> dict[str, Any]:
        own = {"step_logits": step_logits, "loop_logits": loop_logits, "running": running}
        return {**TOOLS, **own, "first_cache": first_cache, "pixels": pixels}

    def homes(self) -> list[ModuleType]:
        return [*super().homes(), hf_running, sys.modules[ModelStage.__module__]]

    def simpler(self, case: Case) -> Iterator[tuple[Stage, Case]]:
        """In float32, if that is not what the case is about."""
        if self.dtype is torch.float64 and case.fails not in EXACT:
            wider = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
            plain = replace(
                self, dtype=torch.float32, drawn_in=torch.float32, decorators=Stage.decorators
            )
            yield plain.again(), replace(case, tolerance=case.tolerance * wider)

    def for_case(self, case: Case) -> Stage:
        return replace(self, usual=case.sizes.get("usual"), other=case.sizes.get("backend"))

    def again(self) -> "ModelStage":
        how = {"attn_implementation": self.implementation, "dtype": self.drawn_in}
        wide = in_float64() if self.drawn_in is torch.float64 else nullcontext()
        with quiet(), torch.random.fork_rng(devices=[]), wide:
            with calling("__init__"):
                code = build_model(
                    self.folder, self.name, dict(self.options), self.auto, self.part, **how
                )
        ready = as_stored if self.folder else prepare
        return replace(self, code=ready(code, self.dtype))

    def with_less(self, names: Sequence[str], less: int, wide: bool) -> "Stage | None":
        name = next((one for one in names if type(self.options.get(one)) is int), None)
        if names not in (LAYERS, HEADS, KV_HEADS) or name is None or less >= self.options[name]:
            return None
        return replace(self, options={**self.options, name: less}).again()

    def heading(self, tools: Sequence[str]) -> Heading:
        import transformers

        version = f"transformers {transformers.__version__}"
        packages = "torch, attnlab" if OURS in (self.other, self.implementation) else "torch"
        wide = self.drawn_in is torch.float64
        what = f"the model in {self.folder}" if self.folder else f"{self.name} of {version}"
        sizes = pprint.pformat(dict(self.options), width=WIDTH, compact=True, sort_dicts=False)
        constants = [f"FOLDER = {self.folder!r}  # of a saved model; without one it is made anew"]
        constants += [f"NAME = {self.name!r}", f"SIZES: dict[str, Any] = {sizes}"]
        how = f"{self.auto!r}, {self.part!r}, "
        how += f"attn_implementation={self.implementation!r}, dtype={self.drawn_in}"
        making = ["import attnlab.integrations.transformers"] * (self.implementation == OURS)
        making += ["FOLDER = (sys.argv[1:] or [FOLDER])[0]"]
        making += ["with in_float64():"] * wide
        making += ["    " * wide + f"code = build_model(FOLDER, NAME, SIZES, {how})"]
        making += [f"{'as_stored' if self.folder else 'prepare'}(code, {self.dtype})"]
        return Heading(
            title=what,
            usage="[folder of another saved model]",
            needs=f"{packages} and transformers; seen with {version}",
            constants="\n".join(constants),
            making="\n".join(making),
        )

    def _other(self, tools: Sequence[str]) -> list[str]:
        """Calls by another backend, which is switched on for each."""
        calls = {"run_by": f"x: Any, {GIVEN}", "step_by": "x: Any, cache: Any"}
        inner = {"run_by": "run(x, padding, positions)", "step_by": "step(x, cache)"}
        lines = []
        for name in (name for name in calls if name in tools):
            body = ["with torch.compiler.set_stance('force_eager'):  # faster for so few inputs"]
            if self.other == OURS:
                body += ["    import attnlab.integrations.transformers  # which makes it known"]
            body += ["    code.set_attn_implementation(backend)", "    try:"]
            body += [f"        return {inner[name]}", "    finally:"]
            body += [f"        code.set_attn_implementation({self.usual!r})"]
            lines += _function(f"{name}(backend: str, {calls[name]})", body)
        if "loop" in tools:
            body = [f"return loop_logits(code, x, first, {self._context()})"]
            lines += _function("loop(x: Any, first: int)", body, self.decorators)
        return lines

    def _stepping(self) -> list[str]:
        given = f"{self.masked}, {self.prepares}, {self._context()}"
        step = [f"return step_logits(code, x, cache, padding, {given})"]
        return [
            *_function(NEW_CACHE, ['return {"kept": first_cache(code)}'], self.decorators),
            *_function("step(x: Any, cache: Any, padding: Any = None)", step, self.decorators),
        ]

    def _context(self) -> str:
        pairs = ", ".join(f'"{name}": {text}' for name, text in self.encoder_text.items())
        return f"{{{pairs}}}" if pairs else "None"


def for_model(subject: Subject, target: str, options: Mapping[str, Any]) -> ModelStage:
    """The stage for a model that the audit had as this subject."""
    assert isinstance(subject, Model) and subject.module is not None
    how, wide = subject.convention, subject.dtype is torch.float64
    if how.folder and how.sizes:
        raise ScriptError("a saved model was given other settings, for which a script has no words")
    stage = ModelStage(
        target=target,
        options=how.sizes,
        code=None,
        dtype=subject.dtype,
        drawn_in=how.drawn_in,
        decorators=(*Stage.decorators, *(["@running(code)"] if wide else [])),
        width=subject.width,
        tokens=how.tokens,
        block=subject.block,
        turned=f"[:, {how.skip}:]" if how.skip else "",
        stepping=Stepping(call=Call()) if subject.caches else None,
        name=how.made_by,
        folder=how.folder,
        auto=how.auto,
        part=how.part,
        encoder_text=how.encoder_text,
        implementation=options.get("attn_implementation"),
        masked=subject.pads,
        prepares=how.prepares,
    )
    call = Call(named={**how.inputs, **{name: repr(one) for name, one in how.constants.items()}})
    call = replace(call, named={**call.named, "return_dict": "True"})
    loss = call.text(more="labels=x") if subject.labelled is not None else ""
    return replace(
        stage,
        call=call,
        padding={how.mask.name: how.mask.form.text} if subject.pads and how.mask else None,
        positions={how.positions: "positions"} if how.positions else None,
        labelled=f"scalar_in({loss})" if loss else "",
    ).again()
