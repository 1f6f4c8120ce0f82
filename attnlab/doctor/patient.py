"""The two sides of a comparison: loaded as the audit loads code, run in float64, watched.

    file.py:Name   package.module:Name   hf:ARCH   a folder of transformers   a run

Axes: b batch, t time, e width of the outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import InputError, SubjectError
from attnlab.audit.hf.families import with_folder
from attnlab.audit.hf.models import subject_of
from attnlab.audit.hf.running import in_float64
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject, Vectors, build_subject
from attnlab.audit.subject.convention import Convention, Form, Mask
from attnlab.audit.subject.load import from_file, options_of, text_hint
from attnlab.doctor.placing import placed
from attnlab.doctor.rotation import Rotation, measure
from attnlab.doctor.watch import Output, Patch, Trace, Watch, hooked
from attnlab.interop.names import parts_of
from attnlab.models.model import Decoder

WINDOWS = ("window", "sliding_window", "window_size", "attention_window", "local_window")
LONGEST = (
    "context",
    "block_size",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "n_ctx",
    "max_len",
)


class Patient:
    """A model that is run with its conventions as they are, or as a patch has them."""

    def __init__(self, name: str, subject: Vectors, trained: bool = False) -> None:
        self.name, self.trained = name, trained
        self._adopt(subject)
        self.table: Tensor | None = None  # of its tokens
        self.rotation: Rotation | None = None
        self.products: tuple[int, ...] = ()
        self.capping: tuple[int, ...] = ()
        self.norms: tuple[str, ...] = ()  # modules: two of every layer
        self.head_norms: tuple[tuple[Tensor, Tensor], ...] = ()  # gains of queries and keys

    def _adopt(self, subject: Vectors) -> None:
        self.subject, self.module = subject, subject.module

    def mask_as(self, other: "Patient") -> None:
        """Padding is told to a parameter of the same name in the same form, if it is taken so.

        The audit finds out in which form a mask works; whoever puts one model in the place of the
        other does not change the form.
        """
        mine, theirs = self.subject.convention.mask, other.subject.convention.mask
        if mine is None or theirs is None or mine.name != theirs.name or mine.form == theirs.form:
            return
        before = self.subject
        convention = replace(before.convention, mask=replace(mine, form=theirs.form))
        self._adopt(before.with_convention(convention))
        x = before.draw(2, 5, 0)
        try:
            self.run(x, torch.zeros(2, 5, dtype=torch.bool))
        except SubjectError:
            self._adopt(before)

    @property
    def tokens(self) -> bool:
        return not self.subject.continuous

    def run(self, x: Tensor, padding: Tensor | None = None, patch: Patch | None = None) -> Tensor:
        """The outputs [b, t, e]."""
        found, _ = self.watched(x, padding, patch)
        return found

    def watched(
        self, x: Tensor, padding: Tensor | None = None, patch: Patch | None = None
    ) -> tuple[Tensor, set[str]]:
        """With what of the patch was met."""
        patch = patch or Patch()
        watch = Watch(
            patch, self.rotation, self.products, self.capping, self.table, self.head_norms
        )
        if padding is not None and patch.upside_down:
            padding = ~padding
        moved = placed(self.module, self.norms, patch.norm_place)
        with torch.no_grad(), in_float64(), self._tied(patch), moved, watch:
            found = self._ask(x, padding)
        return found.double(), watch.met

    def learn_names(self) -> None:
        """What some of its parameters are by their names."""
        named = {} if self.module is None else dict(self.module.named_parameters())
        parts = parts_of(named)
        tables = [name for name, one in parts.items() if one.name == "embed"]
        self.table = named[tables[0]] if tables else None
        layers = {one.layer for one in parts.values() if one.layer is not None}
        by_part = {one: name for name, one in parts.items() if one.kind == "weight"}

        def of_layers(*names: str) -> list[list[str]]:
            wanted = [[(layer, name) for name in names] for layer in sorted(layers)]
            found = {(one.layer, one.name): name for one, name in by_part.items()}
            return [[found[one] for one in row] for row in wanted if set(row) <= set(found)]

        owners = [one.rpartition(".")[0] for row in of_layers("norm 1", "norm 2") for one in row]
        third = any(one.name == "norm 3" for one in parts.values() if one.layer is not None)
        self.norms = () if third else tuple(owners)
        heads = of_layers("q_norm", "k_norm")
        self.head_norms = tuple((named[q], named[k]) for q, k in heads)

    def _ask(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Beside padding too position i is i, as in a model that cannot be told otherwise."""
        positions = None
        if padding is not None and self.subject.placed:
            positions = torch.arange(x.shape[1]).expand(len(x), -1)
        return self.subject.run(x, padding=padding, positions=positions)

    def trace(self, x: Tensor, padding: Tensor | None = None) -> Trace:
        watch = Watch(record=True)
        with torch.no_grad(), in_float64(), hooked(self.module, watch), watch:
            out = self._ask(x, padding)
        watch.trace.outputs.append(Output("output", out))
        return watch.trace

    def examine(self, x: Tensor, repeated: Tensor) -> Trace:
        """What it does with a text; and, of one token repeated, how its queries turn."""
        trace = self.trace(x)
        self.products = tuple(one.product for one in trace.attentions if one.product is not None)
        self.capping = tuple(number for _, _, number in trace.caps)
        seen = self.trace(repeated).attentions
        self.rotation = measure(seen[0].q) if seen else None
        return trace

    @contextmanager
    def _tied(self, patch: Patch) -> Iterator[None]:
        named = {} if self.module is None else dict(self.module.named_parameters())
        kept = [(named[name], named[name].detach().clone()) for name, _ in patch.tied]
        for name, source in patch.tied:
            named[name].data.copy_(named[source].data)
        try:
            yield
        finally:
            for one, before in kept:
                one.data.copy_(before)

    def number(self, names: Sequence[str]) -> int | None:
        """The first setting of one of these names that its modules or their settings hold."""
        modules = [] if self.module is None else list(self.module.modules())
        for module in modules:
            holders = [vars(module)] + [
                vars(one)
                for one in vars(module).values()
                if hasattr(one, "__dict__") and not isinstance(one, nn.Module | Tensor | type)
            ]
            for holder in holders:
                for name in names:
                    if type(holder.get(name)) is int and holder[name] > 0:
                        return int(holder[name])
        return None


def open_patient(target: str, options: Sequence[str], runs: Path) -> Patient:
    """What a word on the command line names."""
    if target.startswith("hf:"):
        return _hf(target.removeprefix("hf:"), options, target)
    folder = Path(target)
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return _hf(with_folder(target).removeprefix("hf:"), options, target)
    if ":" in target and not folder.exists():
        return _code(target, options)
    return _run(target, options, runs)


def _hf(name: str, options: Sequence[str], target: str) -> Patient:
    # loaded in float32, its rates of rotation would be rounded, and those of other code not
    subject = subject_of(name, None, torch.float64, **options_of(options))
    return Patient(target, subject, trained=bool(subject.convention.folder))


def _code(target: str, options: Sequence[str]) -> Patient:
    given = options_of(options, target)
    with torch.random.fork_rng(devices=[]), in_float64():
        torch.manual_seed(0)  # the same weights every time
        code = from_file(target, given)
        try:
            subject = subject_for(code, given, target.rpartition(":")[2])
        except InputError as error:
            raise InputError(f"{error}{text_hint(target, given)}") from error
    return patient_of(subject, target)


def patient_of(subject: Subject, name: str) -> Patient:
    if not isinstance(subject, Vectors):
        raise InputError(
            f"{name} is a Subject of its own; give the module or function that it runs"
        )
    if subject.dtype is not torch.float64:
        raise InputError(f"{name} does not run in float64, in which models are compared")
    return Patient(name, subject)


def made(code: object, name: str, options: Mapping[str, Any] | None = None) -> Patient:
    """Of a module or function at hand."""
    with in_float64():
        return patient_of(subject_for(code, options or {}, name), name)


def _run(word: str, options: Sequence[str], runs: Path) -> Patient:
    from attnlab.training.saved import open_saved

    if options:
        raise InputError(f"{word} is a run and takes no options such as {options[0]}")
    model = open_saved(word, runs, "cpu").model.double().eval()
    convention = Convention(
        name=word,
        code=model,
        module=model,
        width=int(model.settings.vocabulary),
        tokens=True,
        parameters=("tokens",),
        mask=Mask(name="key_padding", form=Form("padding")) if isinstance(model, Decoder) else None,
    )
    return Patient(word, build_subject(convention), trained=True)
