"""Models of the installed `transformers`: built tiny, or read from a folder, and audited.

Axes: b batch, t time, v vocabulary. No network is used and nothing is downloaded: an architecture
is made from its configuration class with random weights, or a saved folder is read.
"""

from collections.abc import Callable, Mapping
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
from attnlab.audit.hf.families import AUTO, Family, class_name, pick
from attnlab.audit.hf.inputs import unseen_inputs
from attnlab.audit.hf.running import in_float64, quiet, without_logs
from attnlab.audit.hf.sizes import HEADS, KV_HEADS, tiny
from attnlab.audit.hf.subject import (
    OURS,
    SOURCE,
    HuggingFace,
    Model,
    ModelConvention,
    Patches,
    as_decoder,
    as_encoder,
    as_patches,
    describe,
    find_out,
    takes,
)
from attnlab.audit.partial import Keep, unexamined
from attnlab.audit.properties.backends import Backends
from attnlab.audit.properties.batch import Batch
from attnlab.audit.properties.left_padding import LeftPadding
from attnlab.audit.properties.padding import Padding
from attnlab.audit.properties.plain_loop import PlainLoop

# What a causal model is documented to do, where that is not to be causal.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "cpmant": {"causal": False},  # a text is context, and context is bidirectional
    "xlnet": {"causal": False},  # is bidirectional unless it is given a permutation
}
# Models whose texts cannot be had from tokens alone.
UNFIT = {
    "encoder-decoder": "it is made of two other models; audit those",
    "gemma4_assistant": "it drafts for another model, and reads that model's keys and values",
    "gemma4_unified_assistant": "it drafts for another model, and reads its keys and values",
    "vision-text-dual-encoder": "it is made of two other models; audit those",
}
# What encoders take besides tokens and images.
OTHER_INPUTS = {
    "input_values": "sound",
    "input_features": "sound",
    "pixel_values_videos": "videos",
    "past_values": "series of numbers",
}


def model_of(
    target: str,
    attn_implementation: str | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> nn.Module:
    """An architecture, tiny and with random weights that depend on the seed only.

    Fewer key/value heads than query heads are tried first: that is where heads get mixed up. In
    float64, constants such as rates of decay are computed in float64 too.
    """
    model: nn.Module = _build(*pick(target), attn_implementation, seed, dtype, options).code
    return model


def _build(
    family: Family,
    arch: str,
    attn_implementation: str | None,
    seed: int,
    dtype: torch.dtype,
    options: Mapping[str, Any],
) -> ModelConvention:
    """The model, and how it is called."""
    _make_known(attn_implementation)
    if arch in UNFIT:
        raise InputError(f"{arch} is not built: {UNFIT[arch]}")
    reason = ""
    for kv_heads in (KV_HEADS, HEADS, 1):
        try:
            return _make(family, arch, kv_heads, attn_implementation, seed, dtype, options)
        except SubjectError as error:  # a configuration may refuse its sizes
            reason = reason or error.reason[:LONGEST]
    raise InputError(f"{arch} is not built: {reason}")


def model_in(
    folder: Path,
    attn_implementation: str | None = None,
    family: Family = "causal",
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A saved model: config.json and safetensors; nothing is unpickled, no code run.

    In float64, what is computed at loading, such as rates of rotation, is computed in float64 too.
    """
    _make_known(attn_implementation)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json; give a folder that save_pretrained made")
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path} is a FIFO, a socket or a device; remove it")  # never ends
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no *.safetensors; other weights may run code when read")
    local = {"local_files_only": True, "trust_remote_code": False}
    with quiet(), in_float64() if dtype is torch.float64 else nullcontext():
        import transformers

        _know_our_own()
        try:
            with calling("from_pretrained"):
                config = transformers.AutoConfig.from_pretrained(folder, **local)
            for name, value in (options or {}).items():
                if not hasattr(config, name):
                    hint = registry.suggest(name, sorted(vars(config)))
                    raise InputError(f"{type(config).__name__} has no {name!r}; {hint}")
                setattr(config, name, value)
            with calling("from_pretrained"):
                model: nn.Module = getattr(transformers, AUTO[family]).from_pretrained(
                    folder,
                    **local,
                    config=config,
                    use_safetensors=True,
                    experts_implementation="eager",
                    attn_implementation=attn_implementation,
                    dtype=dtype,
                )
        except SubjectError as error:
            first = str(error.__cause__).strip().partition("\n")[0][:LONGEST]
            raise InputError(f"{folder} cannot be loaded: {first}") from error
    return model


def _know_our_own() -> None:
    """Folders of our own type are run by our own file, and never by the one that lies in them."""
    import transformers

    from attnlab.interop import modeling_attnlab as own

    kind = own.AttnlabConfig.model_type
    transformers.AutoConfig.register(kind, own.AttnlabConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(
        own.AttnlabConfig, own.AttnlabForCausalLM, exist_ok=True
    )


def _make_known(attn_implementation: str | None) -> None:
    if attn_implementation == OURS:  # the library learns of it by this import
        import attnlab.integrations.transformers  # noqa: F401


def audit_hf(
    target: str,
    attn_implementation: str | None = None,
    tick: Callable[[str], None] = lambda text: None,
    options: Mapping[str, Any] | None = None,
    keep: Keep = lambda certificate: None,
    **declared: Any,
) -> Certificate:
    """The audit of an architecture by name, or of a saved folder, in the family that it is of.

    audit_hf("llama", attn_implementation="eager")    audit_hf("causal/bert")
    """
    tick(f"{target}: build")
    subject = subject_of(target, attn_implementation, **(options or {}))
    return certificate_of(subject, tick, keep, **declared)


def subject_of(
    target: str,
    attn_implementation: str | None = None,
    folder_in: torch.dtype = torch.float32,
    **options: Any,
) -> Model:
    """An architecture by name, or a saved folder; `options` are of its configuration.

    A folder is loaded in float32, as a script of its audit loads it, unless `folder_in` is another.
    """
    family, name = pick(target)
    if is_folder(family, name):
        model = model_in(Path(name), attn_implementation, family, options, folder_in)
        known = _convention(family, model, Path(name).name, options, name)
    else:
        try:
            known = _build(family, name, attn_implementation, 0, torch.float64, options)
        except InputError:  # if the precision was not the reason, the other says so too
            known = _build(family, name, attn_implementation, 0, torch.float32, options)
    made = HuggingFace if known.tokens else Patches
    return made(find_out(known, made))


def is_folder(family: Family, name: str) -> bool:
    """Of `pick`: what is no architecture is a folder."""
    try:
        class_name(family, name)
    except KeyError:
        return True
    return False


def certificate_of(
    subject: Model,
    tick: Callable[[str], None] = lambda text: None,
    keep: Keep = lambda certificate: None,
    **declared: Any,
) -> Certificate:
    how, encodes = subject.convention, subject.convention.role == "encoder"
    has_cache = subject.caches or subject.no_cache is not None
    usual = {"causal": not encodes, "cache": True if has_cache else None}
    documented = {} if encodes else DOCUMENTED.get(how.family, {})
    contract = Contract(**{**usual, **documented, **declared})
    if contract.causal is False:  # what is decoded has not seen what comes after it
        subject, contract = subject.without_cache(), replace(contract, cache=None)

    def explain_and_keep(known: Certificate) -> None:
        rest = unexamined([SOURCE.strip()] if how.encoder_text else [])
        keep(replace(known, findings=(*(_explain(one, subject) for one in known.findings), *rest)))

    with without_logs():
        more = [] if encodes else [LeftPadding(), PlainLoop()]
        certificate = examine(subject, contract, tick, more=more, keep=explain_and_keep)
        findings = [_explain(one, subject) for one in certificate.findings]
        if how.encoder_text:
            findings += _source_findings(subject, tick)
    if how.folder:
        findings += _hidden(subject)
    findings += unseen_inputs(subject)
    return replace(certificate, findings=tuple(findings))


def _source_findings(subject: Model, tick: Callable[[str], None]) -> list[Finding]:
    """What the encoder's text does to the decoder's outputs."""
    source = subject.part_for(SOURCE)
    examined = [Batch(), Padding(), Backends()]
    found = examine(
        source, Contract(causal=False), lambda name: tick(SOURCE + name), properties=examined
    )
    return [replace(one, name=SOURCE + one.name) for one in found.findings]


def _hidden(subject: Model) -> list[Finding]:
    """Weights at 0 in a folder, which are left so: what stands behind them is not seen."""
    assert subject.module is not None
    closed = [
        name
        for name, one in subject.module.named_parameters()
        if not name.endswith("bias") and one.numel() and not bool(one.any())
    ]
    if not closed:
        return []
    listed = ", ".join(closed[:3]) + (f" and {len(closed) - 3} more" if len(closed) > 3 else "")
    detail = f"weights are audited as they are, and {listed} are 0: what they gate is not seen"
    return [Finding(name="weights at 0", verdict="cannot tell", detail=detail)]


def _explain(finding: Finding, subject: Model) -> Finding:
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


def _make(
    family: Family,
    arch: str,
    kv_heads: int,
    attn_implementation: str | None,
    seed: int,
    dtype: torch.dtype,
    options: Mapping[str, Any],
) -> ModelConvention:
    import transformers

    wide = in_float64() if dtype is torch.float64 else nullcontext()
    with quiet(), torch.random.fork_rng(devices=[]), wide:
        with calling("import"):
            model_class = getattr(transformers, class_name(family, arch))
        _check_inputs(family, arch, model_class)
        sizes = tiny(model_class.config_class, kv_heads, family, options)
        torch.manual_seed(seed)
        with calling("__init__"):
            model: nn.Module = model_class._from_config(
                model_class.config_class(**sizes),
                attn_implementation=attn_implementation,
                experts_implementation="eager",  # the others do not compute in float64
                dtype=dtype,
            ).eval()
    known = replace(_convention(family, model, arch, sizes, ""), dtype=dtype)
    # without a cache: whether that works is for the audit to say
    subject = (HuggingFace if known.tokens else Patches)(known)
    with torch.no_grad():
        x = subject.draw(2, known.block if known.block > 1 else 5, 0)
        known.forward(x, **known.constants)
    return known


def _check_inputs(family: Family, arch: str, model_class: Any) -> None:
    """An encoder of something else cannot be given anything."""
    with calling("import"):  # what stands for a class whose library is missing raises here
        takes_first = getattr(model_class, "main_input_name", "input_ids")
    if family != "encoder" or takes_first in ("input_ids", "pixel_values"):
        return
    listed = takes_first if isinstance(takes_first, list | tuple) else [takes_first]
    what = " and ".join(OTHER_INPUTS.get(one, one) for one in listed)
    raise InputError(f"{arch} is not built: it takes {what}, and is given tokens or images only")


def _convention(
    family: Family, model: nn.Module, name: str, sizes: Mapping[str, Any], folder: str
) -> ModelConvention:
    """How a model of a family is called, before anything was tried."""
    whole, pair = type(model).__name__, takes(model, "decoder_input_ids")
    part = "get_encoder" if family == "encoder" and pair else ""
    if part:
        with calling(part):
            model = getattr(model, part)()
        if not hasattr(model, "config"):
            raise InputError(f"{name} is not built: its encoder is no model of its own")
    known = describe(model, name, sizes, folder)
    known = replace(known, auto=AUTO[family], part=part, made_by=whole, role=family)
    if family == "seq2seq":  # some listed there go on with a text that begins with sound
        return as_decoder(known) if pair else replace(known, role="causal")
    if family == "causal":
        return known
    images = takes(model, "pixel_values") and not takes(model, "input_ids")
    if getattr(model, "main_input_name", "input_ids") != "pixel_values" and not images:
        return as_encoder(known)
    return as_patches(known, _patches(model))


def _patches(model: nn.Module) -> dict[str, int]:
    """Of a picture: its channels, the pixels along a patch, and how many patches there are."""
    config: Any = model.config
    found = {}
    for name in ("image_size", "patch_size", "num_channels"):
        with calling(name):
            value = getattr(config, name, 3 if name == "num_channels" else None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if type(value) is not int or value < 1:
            raise SubjectError(f"its configuration has no {name}: it does not cut into patches")
        found[name] = value
    image, patch = found["image_size"], found["patch_size"]
    return {"channels": found["num_channels"], "patch": patch, "count": (image // patch) ** 2}
