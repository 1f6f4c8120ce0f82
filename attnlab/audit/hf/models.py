"""Causal language models of the installed `transformers`: built tiny, or read, and audited.

Axes: b batch, t time, v vocabulary. No network is used and nothing is downloaded: an architecture
is made from its configuration class with random weights, or a saved folder is read.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnlab import registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.errors import LONGEST, InputError, SubjectError, calling
from attnlab.audit.examine import examine
from attnlab.audit.hf.running import in_float64, quiet, without_logs
from attnlab.audit.hf.sizes import HEADS, KV_HEADS, tiny
from attnlab.audit.hf.subject import HuggingFace, takes
from attnlab.audit.properties.left_padding import LeftPadding
from attnlab.audit.properties.plain_loop import PlainLoop

# What a model is documented to do, where that is not to be causal.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "cpmant": {"causal": False},  # a text is context, and context is bidirectional
    "xlnet": {"causal": False},  # is bidirectional unless it is given a permutation
}
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
    return _build(arch, attn_implementation, seed, dtype)[0]


def _build(
    arch: str, attn_implementation: str | None, seed: int, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and the sizes of its configuration."""
    names = _names()
    if arch not in names:
        raise InputError(f"transformers has no {arch!r}; {registry.suggest(arch, list(names))}")
    if arch in UNFIT:
        raise InputError(f"{arch} is not built: {UNFIT[arch]}")
    reason = ""
    for kv_heads in (KV_HEADS, HEADS, 1):
        try:
            return _make(names[arch], kv_heads, attn_implementation, seed, dtype)
        except SubjectError as error:  # a configuration may refuse its sizes
            reason = reason or error.reason[:LONGEST]
    raise InputError(f"{arch} is not built: {reason}")


def model_in(folder: Path, attn_implementation: str | None = None) -> nn.Module:
    """A saved model: config.json and safetensors; nothing is unpickled, no code run."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json; give a folder that save_pretrained made")
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no *.safetensors; other weights may run code when read")
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
            raise InputError(f"{folder} cannot be loaded: {first}") from error
    return model


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
        raise InputError(
            "hf: names no model; use hf:ARCH as hf:llama, hf:FOLDER of a saved model, or hf:all"
        )
    folder = Path(target)
    if folder.is_dir() and target not in _names():
        model = model_in(folder, attn_implementation)
        return HuggingFace.of(model, folder.name, folder=target)
    try:
        model, sizes = _build(target, attn_implementation, 0, torch.float64)
    except InputError:  # if the precision was not the reason, the other says so too
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
        certificate = examine(subject, contract, tick, more=[LeftPadding(), PlainLoop()])
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


def _names() -> dict[str, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library is imported
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        raise InputError("transformers is not installed; pip install transformers") from None
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
