"""The tools that checks of properties call, by name: here from a probe, in a script from its text.

    fails(run, draw, step, new_cache, *, length, …)     run(x, padding, positions) -> [b, t, e]

Axes: b batch, t time, e width of the outputs, h query heads, g key/value heads, d head width.

| tool | what it is |
|---|---|
| draw(batch, length, seed) | inputs [b, t, …] |
| run(x, padding=None, positions=None) | outputs; padding is True where it is |
| new_cache(before=None) | of a new text, after another's where the code itself keeps it |
| step(x, cache, padding=None) | outputs of new positions x; the cache keeps them |
| run_with(x, **arguments) | outputs, with more arguments of the code, by their names |
| run_plain(x, dtype) | outputs of the same code on the CPU, in a precision |
| run_on(x, context, padding=None) | outputs, with another context [b, s, c] |
| draw_context(batch, length, seed) | such contexts |
| run_by(backend, x, padding, positions), step_by(backend, x, cache) | computed another way |
| refusal(x) | why the code does not take these inputs; empty if it does |
| loss(x, padding=None) | what training minimises |
| accumulate(x, parts, padding=None) | leaves the gradient of a batch in the parameters |
| corrupt(tokens, seed) | a text with spans taken out, and the spans |
| loop(x, first) | outputs of a plain decoding loop that tells no positions |
| model | the module, or None |
| heads, watch | (h, g, d) of a function of q, k and v, or None; else what watches a module |

`audit/repro/stage.py` writes the same tools for a script.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import LONGEST, SubjectError, calling
from attnlab.audit.probe.identify import UNSEEN
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.watch import Watch
from attnlab.audit.repro.prelude import CannotTell, seeded
from attnlab.audit.signature import signature
from attnlab.audit.subject.adapters import TOKENS
from attnlab.audit.subject.base import Attention, Subject, Vectors
from attnlab.audit.subject.decoder import Decoder
from attnlab.audit.subject.guard import guard_method
from attnlab.audit.subject.tensors import loss_in, sequence_in

# of kernels that are compiled, when they are watched
REFUSALS = ("Unsupported", "NotImplementedError", "InternalTorchDynamoError")
LABELS = ("labels", "targets")


def tool_names(fails: Callable[..., Any]) -> list[str]:
    """What a check takes first, in its order; sizes come by name."""
    takes = signature(fails).parameters.values()
    return [one.name for one in takes if one.kind is not one.KEYWORD_ONLY]


class ProbeWatch(Watch):
    """Some kernels refuse to be watched. Without a watch the code works, so nothing is claimed."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if isinstance(error[1], SubjectError):
            kernel = error[1].kind in REFUSALS  # with an address in the message, and much more
            reason = "" if kernel else f" ({error[1].reason[:LONGEST]})"
            raise CannotTell(UNSEEN + reason) from error[1]


class Tools:
    def __init__(self, probe: Probe) -> None:
        subject = probe.subject
        self._probe, self._subject = probe, subject
        self.draw = probe.draw
        self.model: nn.Module | None = subject.module
        self.heads: tuple[int, int, int] | None = None
        if isinstance(subject, Attention):
            assert subject.heads is not None and subject.kv_heads is not None
            self.heads = (subject.heads, subject.kv_heads, subject.head_width)
        self.watch = None if self.heads else ProbeWatch

    def run(self, x: Tensor, padding: Tensor | None = None, positions: Any = None) -> Tensor:
        return self._probe.run(x, **_arguments(padding, positions))

    def new_cache(self, before: Any = None) -> object:
        decoder: Decoder | None = getattr(self._subject, "decoder", None)
        if before is None or decoder is None:
            return self._subject.new_cache()
        return decoder.new_cache(before)

    def step(self, x: Tensor, cache: Any, padding: Tensor | None = None) -> Tensor:
        return self._probe.step(x, cache, **_arguments(padding, None))

    def refusal(self, x: Tensor) -> str:
        try:
            self.run(x)
        except SubjectError as error:
            return error.reason
        return ""

    def run_with(self, x: Tensor, **arguments: Any) -> Tensor:
        own = getattr(self._subject, "packed", None)
        call: Callable[..., Any] = self._subject.named if own is None else own  # type: ignore[attr-defined]
        with torch.no_grad():
            return sequence_in(call(x, **arguments), x)

    def run_plain(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        assert isinstance(self._subject, Vectors)
        with torch.no_grad():
            given = x.to(dtype) if x.is_floating_point() else x
            return self._subject.on_cpu(dtype).run(given)

    def run_on(self, x: Tensor, context: Tensor, padding: Tensor | None = None) -> Tensor:
        assert isinstance(self._subject, Vectors)
        return self._subject.run_on(x, context, padding)

    def draw_context(self, batch: int, length: int, seed: int) -> Tensor:
        assert isinstance(self._subject, Vectors)
        return self._subject.draw_context(batch, length, seed)

    def run_by(
        self, backend: str, x: Tensor, padding: Tensor | None = None, positions: Any = None
    ) -> Tensor:
        with torch.compiler.set_stance("force_eager"):  # faster for so few inputs
            return self._by(backend).run(x, **_arguments(padding, positions))

    def step_by(self, backend: str, x: Tensor, cache: Any) -> Tensor:
        with torch.compiler.set_stance("force_eager"):
            return self._by(backend).step(x, cache)

    def _by(self, backend: str) -> Probe:
        known: Mapping[str, Subject] = self._subject.backends
        other: Subject = known[backend] if backend in known else self._subject.by(backend)  # type: ignore[attr-defined]
        return Probe(other, self._probe.contract)

    def loss(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        loss = loss_of(self._subject)
        assert loss is not None
        with torch.no_grad(), seeded(), calling("loss", x.shape[1]):
            found = float(loss(x) if padding is None else loss(x, padding=padding))
        return torch.tensor(found, dtype=torch.float64)

    @property
    def accumulate(self) -> Callable[..., Any]:
        found = method_of(self._subject, "accumulate")
        assert found is not None
        return guard_method("accumulate", found)

    def corrupt(self, tokens: list[int], seed: int) -> tuple[list[int], list[int]]:
        corrupt = method_of(self._subject, "corrupt")
        assert corrupt is not None
        with calling("corrupt", len(tokens)):
            inputs, targets = corrupt(tokens, seed)
            return [int(one) for one in inputs], [int(one) for one in targets]

    def loop(self, x: Tensor, first: int) -> Tensor | None:
        found: Tensor | None = self._subject.loop_logits(x, first)  # type: ignore[attr-defined]
        return found


def _arguments(padding: Tensor | None, positions: Tensor | None) -> dict[str, Tensor]:
    every = {"padding": padding, "positions": positions}
    return {name: value for name, value in every.items() if value is not None}


def method_of(subject: Subject, name: str) -> Callable[..., Any] | None:
    """Of the subject or its module; one that begins with tokens, not a loss that is a layer."""
    for holder in (subject, subject.module):
        found = getattr(holder, name, None)
        if callable(found):
            takes = list(signature(found).parameters)
            if takes and takes[0] in (*TOKENS, "text", "x"):
                return found  # type: ignore[no-any-return]
    return None


def loss_of(subject: Subject) -> Callable[..., Tensor] | None:
    """A loss of the text alone, or else one of a text that is its own label."""
    found = method_of(subject, "loss") or getattr(subject, "labelled", None)
    if found is not None:
        return found
    module, word = subject.module, label_word(subject)
    if module is None or not word:
        return None

    def labelled(x: Tensor) -> Tensor:
        with seeded(), calling("forward", x.shape[1]):
            found = module(x, **{word: x})
        return loss_in(found)

    return labelled


def label_word(subject: Subject) -> str:
    """What a module calls its labels; empty if it takes none."""
    module = subject.module
    takes = [] if module is None else signature(module.forward).parameters
    return next((one for one in takes if one in LABELS), "")
