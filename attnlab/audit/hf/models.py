"""Causal language models of the installed `transformers`: built tiny, or read, and audited.

Axes: b batch, t time, v vocabulary. No network is used and nothing is downloaded: an architecture
is made from its configuration class with random weights, or a saved folder is read.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.errors import LONGEST, SubjectError, calling
from attnlab.audit.examine import examine
from attnlab.audit.hf.running import (
    in_float64,
    quiet,
    without_logs,
)
from attnlab.audit.hf.sizes import HEADS, KV_HEADS, WINDOW, tiny
from attnlab.audit.hf.subject import HuggingFace, takes
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.property import Property, unsteady

# What a model is documented to do, where that is not to be causal.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "cpmant": {"causal": False},  # a text is context, and context sees both ways
    "xlnet": {"causal": False},  # sees both ways unless it is given a permutation
}
# Models whose texts cannot be had from tokens alone.
UNFIT = {
    "gemma4_assistant": "it drafts for another model, and reads that model's keys and values",
    "gemma4_unified_assistant": "it drafts for another model, and reads its keys and values",
}
# What is done to a text behind padding, in words.
Change = Literal["content", "neighbour", "shift", "decoding"]
CHANGES: dict[Change, str] = {
    "content": "what stands in the padding changed",
    "neighbour": "the other row of the batch has padding",
    "shift": "padding stands before it",
    "decoding": "it is decoded behind padding",
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
    return _build(arch, attn_implementation, seed, dtype)[0]


def _build(
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
            return _make(names[arch], kv_heads, attn_implementation, seed, dtype)
        except SubjectError as error:  # a configuration may refuse its sizes
            reason = reason or error.reason[:LONGEST]
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
            with calling("from_pretrained"):
                model: nn.Module = AutoModelForCausalLM.from_pretrained(
                    folder,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    experts_implementation="eager",
                    attn_implementation=attn_implementation,
                    dtype=torch.float32,
                )
        except SubjectError as error:
            first = str(error.__cause__).strip().partition("\n")[0][:LONGEST]
            raise ValueError(f"{folder} cannot be loaded: {first}") from error
    return model


@dataclass(frozen=True)
class LeftPadding(Property):
    """A text after padding gives what it gives alone, if its positions are told: so do batches."""

    name = "left padding"

    def examine(self, probe: Probe) -> Finding:
        subject = probe.subject
        if not isinstance(subject, HuggingFace) or not subject.pads:
            return self.finding("not applicable", "it takes no mask for padding")
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        length, padded = 13, 5
        x, other = probe.draw(2, length), probe.draw(2, length, 6)
        padding = torch.zeros(2, length, dtype=torch.bool)
        padding[0, :padded] = True
        told = torch.arange(length)[None]
        alone = probe.run(x[:1, padded:], positions=told[:, : length - padded])
        beside = probe.run(x, positions=told)[1:]
        out = probe.run(x, padding=padding)
        changed = probe.run(torch.where(padding, other, x), padding=padding)
        found: dict[Change, float] = {
            "content": apart(out[:1, padded:], changed[:1, padded:]),
            "neighbour": apart(out[1:], beside),
            "shift": apart(out[:1, padded:], alone),
        }
        if subject.caches:
            decoded = _decode(probe, x, padding, padded + 4)
            found["decoding"] = apart(decoded[:1, padded:], alone)
        for change, off in found.items():
            if off <= probe.tolerance:
                continue
            size, what = off if off < float("inf") else None, CHANGES[change]
            detail = f"a text moves by {off:.2g} when {what}"
            if change in ("shift", "decoding") and not subject.placed:
                detail += "; it takes no positions, so the text stands elsewhere"
                return self.finding("not applicable", detail, measured=size)
            if "left" not in subject.sides:
                detail += "; the library says that padding may stand on the right only"
                return self.finding("not applicable", detail, measured=size)
            return self.finding("fail", detail, measured=size, example={"what": what})
        return self.finding("pass", "a text behind padding gives what it gives alone")


@dataclass(frozen=True)
class Loop(Property):
    """A cache is handed back without positions, as in a plain loop: the model counts on itself."""

    name = "plain loop"

    def examine(self, probe: Probe) -> Finding:
        subject = probe.subject
        if not isinstance(subject, HuggingFace) or not (subject.caches and subject.placed):
            return self.finding("not applicable", "it has no cache, or takes no positions")
        reason = unsteady(probe)
        if reason:
            return self.finding("cannot tell", reason)
        x = probe.draw(2, WINDOW - 1)  # what lies beyond a window is asked elsewhere
        steps = subject.loop_logits(x, WINDOW - 4)
        if steps is None:
            return self.finding("not applicable", "it gives no cache back")
        off = apart(steps, probe.run(x))
        if off <= probe.tolerance:
            return self.finding(
                "pass", "with a cache and no positions a text goes on", measured=off
            )
        detail = f"decoded with a cache and no positions, a text moves by {off:.2g}"
        return self.finding("fail", detail, measured=off)


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
        return HuggingFace.of(model, folder.name, folder=target)
    try:
        model, sizes = _build(target, attn_implementation, 0, torch.float64)
    except ValueError:  # if the precision was not the reason, the other says so too
        model, sizes = _build(target, attn_implementation, 0, torch.float32)
    return HuggingFace.of(model, target, sizes)


def certificate_of(
    subject: HuggingFace, tick: Callable[[str], None] = lambda text: None, **declared: Any
) -> Certificate:
    has_cache = subject.caches or subject.no_cache is not None
    usual = {"causal": True, "cache": True if has_cache else None}
    contract = Contract(**{**usual, **DOCUMENTED.get(subject.convention.family, {}), **declared})
    if contract.causal is False:  # what is decoded has not seen what comes after it
        subject, contract = subject.without_cache(), replace(contract, cache=None)
    with without_logs():
        certificate = examine(subject, contract, tick, more=[LeftPadding(), Loop()])
    explained = tuple(_explain(one, subject) for one in certificate.findings)
    return replace(certificate, findings=explained)


def _explain(finding: Finding, subject: HuggingFace) -> Finding:
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


def _decode(probe: Probe, x: Tensor, padding: Tensor, first: int) -> Tensor:
    """A padded beginning and single steps after it, as batches are generated."""
    subject = probe.subject
    assert isinstance(subject, HuggingFace)
    cache = subject.new_cache()
    sizes = [first] + [1] * (x.shape[1] - first)
    with torch.no_grad():
        found = [
            subject.step(piece, cache, padding=hidden)
            for piece, hidden in zip(x.split(sizes, 1), padding.split(sizes, 1), strict=True)
        ]
    return torch.cat(found, dim=1)


def _names() -> dict[str, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library is imported
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        raise ValueError("transformers is not installed; pip install transformers") from None
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _make(
    class_name: str,
    kv_heads: int,
    attn_implementation: str | None,
    seed: int,
    dtype: torch.dtype,
) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    wide = in_float64() if dtype is torch.float64 else nullcontext()
    with quiet(), torch.random.fork_rng(devices=[]), wide:
        with calling("import"):
            model_class = getattr(transformers, class_name)
        sizes = tiny(model_class.config_class, kv_heads)
        torch.manual_seed(seed)
        with calling("__init__"):
            model: nn.Module = model_class._from_config(
                model_class.config_class(**sizes),
                attn_implementation=attn_implementation,
                experts_implementation="eager",  # the others do not compute in float64
                dtype=dtype,
            ).eval()
        # without a cache: whether that works is for the audit to say
        given = {"use_cache": False} if takes(model, "use_cache") else {}
        with torch.no_grad(), calling("forward", 5):
            model(torch.arange(10).reshape(2, 5), **given)
    return model, sizes
