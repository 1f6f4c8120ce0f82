"""Convert: a folder of weights becomes another in another layout, checked before it is there.

What lies beside the weights is copied if it is data: JSON, text, a tokenizer's model. Code, pickles
and links are not.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from attnlab import __version__, files, json_files
from attnlab.attention.heads import Grouped, MultiHead
from attnlab.attention.positions import Rotary
from attnlab.interop import folder as folders
from attnlab.interop import streaming
from attnlab.interop.anatomy import KV_HEADS, RECORD, Anatomy
from attnlab.interop.conversion import Conversion
from attnlab.interop.exporting import MODELLING
from attnlab.interop.families.own import OWN
from attnlab.interop.fields import Unsupported
from attnlab.interop.plan import Plan
from attnlab.printable import one_line
from attnlab.training.examine import examine

REPORT, CARD = "conversion.json", "README.md"
DATA = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
LICENCES = {"LICENSE", "NOTICE", "COPYING"}
OF_BEFORE = {folders.CONFIG, REPORT, CARD, "parity.json"}  # written anew, or no longer true
OTHER = {"interleaved": "half-split", "half-split": "interleaved"}


@dataclass(frozen=True)
class Loss:
    """Of the held-out part of a text, in nats a token."""

    before: float
    after: float
    tokens: int
    text: str


@dataclass(frozen=True)
class Converted:
    folder: Path
    moves: dict[str, str | int]
    exact: bool  # the same function, of which nothing is lost
    changed: list[str]  # tensors
    said: list[str]  # what was assumed, and what does not hold any more
    not_copied: list[str]
    loss: Loss | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


def convert(
    source: Path,
    place: Path,
    asked: Conversion,
    *,
    text: Path | None = None,
    device: str = "auto",
    tick: Callable[[str], None] = lambda _: None,
) -> Converted:
    if not asked.asked:
        raise ValueError(
            "nothing is asked for; say what to convert: rotary=, qkv=, kv_heads=, head= or "
            "matrices="
        )
    folders.refuse_taken(place)
    plain = _config(source)
    tensors = folders.Tensors(source)
    plan = Plan(
        Anatomy(tensors, plain, str(source), asked.heads, asked.fused, asked.rotated), asked
    )
    config = _new_config(plan)
    said = [*_assumed(plan), *_of_transformers(plan, config)]
    measure = _Measure(text, device, tick)
    before = measure.of(source)
    with folders.new_folder(place) as temporary:
        tick("converting")
        _write_tensors(temporary, plan, tensors)
        if plain:
            _put(temporary / folders.CONFIG, config)
        left = _copy_beside(source, temporary)
        if plan.anatomy.kind == OWN.model_type:
            files.write_new(temporary / MODELLING.name, MODELLING.read_bytes())
            left = [one for one in left if not one.startswith(MODELLING.name)]
        loss = None if before is None else measure.with_before(before, temporary)
        if not plan.is_exact and loss is None:
            said.append("its loss was not measured; --text FILE measures it before and after")
        changed = sorted(plan.changed)
        made = Converted(place, asked.asked, plan.is_exact, changed, said, left, loss)
        report = made.to_json() | {
            "folder": one_line(place.absolute().name),
            "attnlab": __version__,
            "source": one_line(source.absolute().name),
            "source_sha256": _hashes(source, tensors),
        }
        _put(temporary / REPORT, report)
        files.write_new(temporary / CARD, _card(source, made, place.absolute().name).encode())
    return made


def _config(source: Path) -> dict[str, Any]:
    if source.is_file() and source.suffix == ".safetensors":
        return {}
    if not source.is_dir():
        raise ValueError(f"{source} is no folder; give one with safetensors, or such a file")
    if (source / "checkpoints").is_dir():
        raise ValueError(f"{source} is a run; make a folder of it: attnlab export {source} …")
    path = source / folders.CONFIG
    return folders.read_object(path) if path.exists() else {}


def _write_tensors(temporary: Path, plan: Plan, tensors: folders.Tensors) -> None:
    def shape(name: str) -> Tensor:
        return streaming.empty(name, tensors[name].shape, tensors[name].dtype)

    sizes = [path.stat().st_size for path in {one.path for one in tensors.values()}]
    most = max(sizes) if len(sizes) > 1 else max(*sizes, streaming.SHARD)
    expected = list(plan.stream(shape, shape))
    streaming.write(temporary, expected, plan.stream(tensors.read, tensors.copy), most)


def _new_config(plan: Plan) -> dict[str, Any]:
    """With what follows from the moves."""
    plain, asked = dict(plan.anatomy.plain), plan.asked
    if not plain:
        return {}
    if plan.anatomy.kind == OWN.model_type:
        plain |= _own_config(plan)
    elif asked.kv_heads:
        known = [name for name in KV_HEADS if name in plain]
        plain |= dict.fromkeys(known or KV_HEADS[:1], asked.kv_heads)
    if asked.head:
        plain["tie_word_embeddings"] = asked.head == "tied"
    record, native = dict(plan.anatomy.recorded), plan.anatomy.native
    for name in ("rotary", "qkv", "matrices"):
        value = asked.asked.get(name)
        if value is None or (name == "rotary" and plan.anatomy.kind == OWN.model_type):
            continue
        if native is not None and getattr(native, name) == value:
            record.pop(name, None)
        else:
            record[name] = value
    plain.pop(RECORD, None)
    return plain | ({RECORD: record} if record else {})


def _own_config(plan: Plan) -> dict[str, Any]:
    """Our own model type has all that in its settings."""
    asked = plan.asked
    plain = {name: value for name, value in plan.anatomy.plain.items() if name != RECORD}
    settings = OWN.settings(plain)
    if asked.rotary:
        if not isinstance(settings.positions, Rotary):
            raise plan.anatomy.refused("its positions are not rotary")
        settings = replace(settings, positions=replace(settings.positions, layout=asked.rotary))
    if asked.kv_heads:
        own = settings.attention
        heads, width = own.heads, own.head_width
        shared = Grouped(heads=heads, kv_heads=asked.kv_heads, head_width=width)
        plain_heads = MultiHead(heads=heads, head_width=width)
        settings = replace(settings, attention=plain_heads if asked.kv_heads == heads else shared)
    if asked.head:
        settings = replace(settings, tied=asked.head == "tied")
    try:
        return OWN.write(settings)
    except Unsupported as error:
        raise plan.anatomy.refused(str(error)) from None


def _assumed(plan: Plan) -> list[str]:
    one, asked = plan.anatomy, plan.asked
    said = []
    if asked.rotary and one.rotary is None:
        before = OTHER[asked.rotary]
        said.append(
            f"pairs that turn were taken as {before} before, which weights do not show; the first "
            f"{one.rotated} of {one.head_width} coordinates of a head were moved"
        )
    if asked.kv_heads and asked.kv_heads < one.kv_heads:
        said.append(
            f"each key/value head is the mean of {one.kv_heads // asked.kv_heads} that there were, "
            "computed in a wider dtype and rounded; the model is to be trained further"
        )
    return said


def _of_transformers(plan: Plan, config: dict[str, Any]) -> list[str]:
    """Why the library would not load the result, or would compute something else."""
    one, native, kind = plan.anatomy, plan.anatomy.native, plan.anatomy.kind
    if not config:
        return ["there is no config.json, so transformers loads neither of the two folders"]
    if native is None:
        return [f"whether transformers loads it is not known of a model of type {kind}"]
    record = config.get(RECORD, {})
    fails, draws, loads = list[str](), list[str](), list[str]()
    if "qkv" in record:
        # names differ between one tensor and three, and nothing does between two orders in one
        alike = "separate" not in (record["qkv"], native.qkv)
        (loads if alike else draws).append(f"its {kind} has q, k and v {native.qkv}")
    if "matrices" in record:
        fails.append(f"its {kind} has matrices {native.matrices}")
    shares = plan.asked.kv_heads or one.kv_heads if plan.moves else one.heads
    if not native.shares and shares != one.heads:
        fails.append(f"its {kind} shares no key/value heads")
    if "rotary" in record:
        loads.append(f"its {kind} turns {native.rotary} pairs")
    if fails:
        return [
            *(f"transformers does not load it: {why}" for why in fails),
            *(f"transformers would compute another function: {why}" for why in draws + loads),
        ]
    random = "draws weights at random for queries, keys and values, and warns of it"
    silent = "would compute another function"
    silent = silent if draws else f"would load it without a word, and {silent}"
    return [
        *(f"transformers {random}: {why}" for why in draws),
        *(f"transformers {silent}: {why}" for why in loads),
    ]


@dataclass(frozen=True)
class _Measure:
    text: Path | None
    device: str
    tick: Callable[[str], None]

    def of(self, folder: Path) -> dict[str, Any] | None:
        if self.text is None:
            return None
        words = [f"data={self.text}"]
        found = examine(
            str(folder), words, root=Path("runs"), device=self.device, predict=None, tick=self.tick
        )
        if "loss" not in found:
            raise ValueError(f"{self.text} has no held-out part to measure the loss on")
        return found

    def with_before(self, before: dict[str, Any], folder: Path) -> Loss:
        after = self.of(folder)
        assert after is not None and self.text is not None
        text = one_line(self.text.name)
        return Loss(before["loss"], after["loss"], after["tokens"], text)


def _copy_beside(source: Path, temporary: Path) -> list[str]:
    """What was not copied, and why."""
    left: list[str] = []
    for path in sorted(source.iterdir()) if source.is_dir() else []:
        name = path.name
        if name in OF_BEFORE or name.startswith(".") or name.endswith(".index.json"):
            continue
        if path.is_symlink():
            if path.suffix in DATA:
                left.append(f"{one_line(name)}: a link, and links are not followed")
        elif path.is_dir():
            left.append(f"{one_line(name)}: a folder")
        elif path.suffix in DATA or name in LICENCES:
            files.write_new(temporary / name, files.read(path))
        elif path.suffix != ".safetensors":
            left.append(f"{one_line(name)}: no JSON, text or tokenizer")
    return left


def _card(source: Path, made: Converted, name: str) -> str:
    before = source / CARD
    plain = before.is_file() and not before.is_symlink()
    text = files.read(before, files.NAMED).decode(errors="replace") if plain else f"# {name}\n"
    moves = ", ".join(f"{key}={value}" for key, value in made.moves.items())
    lines = [
        text.rstrip(),
        "",
        "## Converted",
        "",
        f"From `{one_line(source.absolute().name)}` by attnlab {__version__}: {moves}. "
        + (
            "Numbers were moved and none computed; undone, they gave the same bits."
            if made.exact
            else "It is another function than the model before."
        ),
        "",
        *(f"- {one}" for one in made.said),
    ]
    if made.loss is not None:
        one = made.loss
        lines.append(
            f"- held-out loss of {one.text}, {one.tokens:,} tokens: {one.before:.4f} nats a token "
            f"before, {one.after:.4f} after"
        )
    return "\n".join([*lines, ""])


def _hashes(source: Path, tensors: folders.Tensors) -> dict[str, str]:
    paths = {one.path for one in tensors.values()}
    paths |= {source / folders.CONFIG} if (source / folders.CONFIG).is_file() else set()
    return {path.name: folders.sha256(path) for path in sorted(paths)}


def _put(path: Path, value: object) -> None:
    files.write_new(path, json_files.as_json(value))
