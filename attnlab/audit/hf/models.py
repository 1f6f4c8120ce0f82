"""Causal language models of the installed `transformers`: built tiny, run whole and step by step.

    tokens [b, t] -> logits [b, t, v]

Axes: b batch, t time, v vocabulary. No network is used and nothing is downloaded: an architecture
is made from its configuration class with random weights, or a saved folder is read. Texts are
padded, placed and stepped as the library's own generation does it.
"""

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.examine import examine
from attnlab.audit.hf.running import (
    Narrowing,
    looped,
    places,
    quiet,
    running,
    stepped,
    unlogged,
    widened,
)
from attnlab.audit.hf.sizes import HEADS, KV_HEADS, TOKENS, tiny
from attnlab.audit.probe.probe import apart
from attnlab.audit.properties.left_padding import LeftPadding
from attnlab.audit.properties.plain_loop import PlainLoop
from attnlab.audit.repro.prelude import scalar_in
from attnlab.audit.subject.adapters import prepared
from attnlab.audit.subject.base import Subject, Tokens, sequence_in

BACKENDS = ("eager", "sdpa")
# What a model is documented to do, where that is not to be causal.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "cpmant": {"causal": False},  # a text is context, and context sees both ways
    "xlnet": {"causal": False},  # sees both ways unless it is given a permutation
}
# These take an attention mask so that they can be called like the others, and say so.
NO_MASK = ("cpmant", "rwkv")
# Of these the library says, in its code or its tests, that padding may stand on the right only:
# what they pool, hash or convolve is cut into blocks from the first slot on, or never masked.
RIGHT_ONLY = ("deepseek_v4", "minimax_m3_vl_text", "recurrent_gemma", "reformer")
# Models whose texts cannot be had from tokens alone.
UNFIT = {
    "gemma4_assistant": "it drafts for another model, and reads that model's keys and values",
    "gemma4_unified_assistant": "it drafts for another model, and reads its keys and values",
}


def architectures() -> list[str]:
    """Every causal language model that the installed `transformers` knows."""
    return list(_names())


def model_of(
    arch: str,
    attn_implementation: str | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """An architecture, tiny and with random weights that depend on the seed only.

    Fewer key/value heads than query heads are tried first: that is where heads get mixed up. In
    float64, constants such as rates of decay are computed in float64 too.
    """
    return _built(arch, attn_implementation, seed, dtype)[0]


def _built(
    arch: str, attn_implementation: str | None, seed: int, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and the sizes of its configuration."""
    names = _names()
    if arch not in names:
        raise ValueError(f"transformers has no {arch!r}; {registry.suggest(arch, list(names))}")
    if arch in UNFIT:
        raise ValueError(f"{arch} is not built: {UNFIT[arch]}")
    reason = ""
    for kv_heads in (KV_HEADS, HEADS, 1):
        try:
            return _made(names[arch], kv_heads, attn_implementation, seed, dtype)
        except Exception as error:  # a configuration may refuse its sizes in any way
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    raise ValueError(f"{arch} is not built: {reason}")


def model_in(folder: Path, attn_implementation: str | None = None) -> nn.Module:
    """A saved model: config.json and safetensors; nothing is unpickled, no code run."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no config.json; give a folder that save_pretrained made")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} holds no *.safetensors; other weights may run code when read")
    with quiet():
        from transformers import AutoModelForCausalLM

        try:
            model: nn.Module = AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                experts_implementation="eager",
                attn_implementation=attn_implementation,
                dtype=torch.float32,
            )
        except (ValueError, OSError, KeyError) as error:
            first = str(error).strip().splitlines()[0][:200]
            raise ValueError(f"{folder} cannot be loaded: {first}") from error
    return model


class HuggingFace(Tokens):
    """A causal language model of `transformers` as a subject.

    `backends` are the same model, run by each way it has to compute attention. It was made with
    `sizes`, or read from a `folder`: a script makes it so again.
    """

    def __init__(
        self, model: nn.Module, name: str, sizes: Mapping[str, Any] | None = None, folder: str = ""
    ) -> None:
        self._model: Any = model
        self.sizes, self.folder = sizes or {}, folder
        self.built = next(model.parameters()).dtype  # weights were drawn, or saved, in it
        whole: Any = model.config
        config = whole.get_text_config(decoder=True)
        self.kind: str = whole.model_type
        takes = inspect.signature(self._model.forward).parameters
        self.takes = tuple(one for one in ("attention_mask", "position_ids") if one in takes)
        # what it is told to compute a text as a whole
        self.whole = {"use_cache": False} if "use_cache" in takes else {}
        super().__init__(name, self._logits, min(config.vocab_size, TOKENS))
        self.pads = "attention_mask" in self.takes and whole.model_type not in NO_MASK
        self.sides = ("right",) if whole.model_type in RIGHT_ONLY else ("right", "left")
        self.placed = "position_ids" in self.takes
        self.heads = _number(config, "num_attention_heads")
        self.kv_heads = _number(config, "num_key_value_heads") or self.heads
        self.layers = _number(config, "num_hidden_layers") or 1
        self._backend = _backend(self._model)
        self.prepares = True  # whether its own preparation of inputs works outside generation
        self.no_cache: str | None = None  # why a cache that it takes cannot be used
        self.backends: dict[str, Subject] = {}
        self._settle()

    def new_cache(self) -> dict[str, Any]:
        return {}

    def step(self, x: Tensor, cache: dict[str, Any], padding: Tensor | None = None) -> Tensor:
        """The logits of the new tokens; they are prepared as generation prepares them."""
        with self._running():
            found: Tensor = stepped(self._model, x, cache, padding, self.pads, self.prepares)
        return found

    def named(self, x: Tensor, **given: Any) -> Tensor:
        """The logits, with more arguments by name; `takes` are those that tell texts apart."""
        with torch.no_grad(), self._running():
            found = self._model(input_ids=x, return_dict=True, **self.whole, **given)
        return sequence_in(found.logits, x)

    @property
    def flexible(self) -> bool:
        """Whether its class claims that attention can be computed by flex_attention too."""
        return bool(getattr(self._model, "_supports_flex_attn", False))

    @property
    def labelled(self) -> Callable[[Tensor], Tensor] | None:
        """The loss of a text that is its own label, as training has it."""
        if "labels" not in inspect.signature(self._model.forward).parameters:
            return None

        def loss(tokens: Tensor) -> Tensor:
            with self._running():
                found = self._model(input_ids=tokens, labels=tokens, return_dict=True, **self.whole)
            return scalar_in(found)

        return loss

    def begins_elsewhere(self) -> bool:
        """Whether positions from 0 on are not those that it takes when it is told none."""
        x = self.draw(2, 5, 0)
        with torch.no_grad():
            told = self.run(x, positions=torch.arange(5)[None])
            return self.placed and apart(told, self.run(x)) > 1e-3 * float(told.abs().max())

    def looped(self, x: Tensor, first: int) -> Tensor | None:
        """The logits of a plain loop: a cache is handed back, and no positions; None if none is."""
        with self._running(), torch.no_grad():
            found: Tensor | None = looped(self._model, x, first)
        return found

    def by(self, backend: str) -> "HuggingFace":
        """The same model, which computes attention in another way."""
        other = copy.copy(self)
        other._backend = backend
        other._call = other._logits
        other.backends = {}
        return other

    def _logits(self, x: Tensor, padding: Tensor | None, positions: Tensor | None) -> Any:
        given: dict[str, Any] = dict(self.whole)
        if padding is not None:
            given["attention_mask"] = (~padding).long()
            # behind padding a text must be told where it begins, as generation does
            if positions is None and bool(padding[:, 0].any()):
                positions = places(padding)
        if positions is not None and self.placed:
            given["position_ids"] = positions.expand(x.shape[0], -1)
        with self._running():
            return self._model(input_ids=x, return_dict=True, **given).logits

    @contextmanager
    def _running(self) -> Iterator[None]:
        with quiet(), running(self._model) if self._wide else nullcontext():
            if self._backend is not None and _backend(self._model) != self._backend:
                self._model.set_attn_implementation(self._backend)
            yield

    def _settle(self) -> None:
        """float64 if the whole of the computation goes along, whichever way it is done."""
        self._model.train()  # so that it is prepared, whatever its precision is already
        narrow = copy.deepcopy(self._model)
        for self.dtype, self._wide in ((torch.float64, True), (torch.float32, False)):
            self._model = self.module = prepared(self._model, self.dtype)
            try:
                with torch.no_grad(), Narrowing() as narrowing:
                    out = self.run(self.draw(2, 5, 0))
                    self.caches = self._has_cache()
                    self.backends = self._alternatives()
            except Exception as error:
                if self.dtype is torch.float32:
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                    raise ValueError(
                        f"{self.name} cannot be called with tokens [2, 5]: {reason}"
                    ) from error
            else:
                if out.dtype is self.dtype and not narrowing.seen:
                    self.exact = self.dtype is torch.float64  # it was watched: nothing narrows
                    return
            self._model = narrow  # whose weights have not been changed for float64

    def _has_cache(self) -> bool:
        reasons = []
        for self.prepares in (True, False):
            try:
                cache, x = self.new_cache(), self.draw(2, 5, 0)
                self.step(x[:, :4], cache)
                if not cache["kept"]:
                    return False
                self.step(x[:, 4:], cache)
                return True
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.no_cache = reasons[-1]
        return False

    def _alternatives(self) -> dict[str, Subject]:
        found: dict[str, Subject] = {}
        for backend in BACKENDS:
            if backend == self._backend or not getattr(self._model, f"_supports_{backend}", True):
                continue
            other = self.by(backend)
            try:
                other.run(self.draw(2, 5, 0))
                if other.caches:
                    other.step(self.draw(2, 5, 0), other.new_cache())
            except Exception:  # it does not have this one
                continue
            if _backend(self._model) == backend:  # some only say that they cannot
                found[backend] = other
        self.run(self.draw(2, 5, 0))  # back to its own
        return {self._backend or "usual": self, **found} if found else {}


def audit_hf(
    target: str,
    attn_implementation: str | None = None,
    tick: Callable[[str], None] = lambda text: None,
    **declared: Any,
) -> Certificate:
    """The audit of an architecture by name, or of a saved folder; causal unless declared not.

    audit_hf("llama", attn_implementation="eager")
    """
    tick(f"{target}: build")
    return certificate_of(subject_of(target, attn_implementation), tick, **declared)


def subject_of(target: str, attn_implementation: str | None = None) -> HuggingFace:
    """An architecture by name, or a saved folder."""
    if not target:
        raise ValueError(
            "hf: names no model; use hf:ARCH as hf:llama, hf:FOLDER of a saved model, or hf:all"
        )
    folder = Path(target)
    if folder.is_dir() and target not in _names():
        model = model_in(folder, attn_implementation)
        return HuggingFace(model, folder.name, folder=target)
    try:
        model, sizes = _built(target, attn_implementation, 0, torch.float64)
    except ValueError:  # if the precision was not the reason, the other says so too
        model, sizes = _built(target, attn_implementation, 0, torch.float32)
    return HuggingFace(model, target, sizes)


def certificate_of(
    subject: HuggingFace, tick: Callable[[str], None] = lambda text: None, **declared: Any
) -> Certificate:
    has_cache = subject.caches or subject.no_cache is not None
    usual = {"causal": True, "cache": True if has_cache else None}
    contract = Contract(**{**usual, **DOCUMENTED.get(subject.kind, {}), **declared})
    if contract.causal is False:  # what is decoded has not seen what comes after it
        subject.caches, contract = False, replace(contract, cache=None)
    with unlogged():
        certificate = examine(subject, contract, tick, more=[LeftPadding(), PlainLoop()])
    explained = tuple(_explained(one, subject) for one in certificate.findings)
    return replace(certificate, findings=explained)


def _explained(finding: Finding, subject: HuggingFace) -> Finding:
    if finding.name == "packing" and finding.verdict == "fail" and "left" not in subject.sides:
        more = "; the library says that what it pools is not masked"
        return replace(finding, verdict="not applicable", detail=finding.detail + more)
    if finding.name != "cache":
        return finding
    if finding.verdict == "fail" and subject.begins_elsewhere():
        more = "; generation tells it positions from 0 on, and by itself it begins elsewhere"
        return replace(finding, detail=finding.detail + more)
    if subject.no_cache is None:
        return finding
    return replace(finding, detail=f"it breaks down with a cache: {subject.no_cache}")


def _names() -> dict[str, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library is imported
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        raise ValueError("transformers is not installed; pip install transformers") from None
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _made(
    class_name: str,
    kv_heads: int,
    attn_implementation: str | None,
    seed: int,
    dtype: torch.dtype,
) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    wide = widened() if dtype is torch.float64 else nullcontext()
    with quiet(), torch.random.fork_rng(devices=[]), wide:
        model_class = getattr(transformers, class_name)
        sizes = tiny(model_class.config_class, kv_heads)
        torch.manual_seed(seed)
        model: nn.Module = model_class._from_config(
            model_class.config_class(**sizes),
            attn_implementation=attn_implementation,
            experts_implementation="eager",  # the others do not compute in float64
            dtype=dtype,
        ).eval()
        with torch.no_grad():  # without a cache: whether that works is for the audit to say
            given = {"use_cache": False} if _takes(model, "use_cache") else {}
            model(torch.arange(10).reshape(2, 5), **given)
    return model, sizes


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _backend(model: Any) -> str | None:
    return getattr(model.config, "_attn_implementation", None)


def _number(config: Any, name: str) -> int | None:
    try:
        value = getattr(config, name, None)
    except Exception:  # one that differs from layer to layer may refuse to be read
        return None
    return value if type(value) is int and value > 0 else None
