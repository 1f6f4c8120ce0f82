"""What the measurements of the rope-gqa study show: what fewer key/value heads save."""

from dataclasses import dataclass
from typing import Any

from attnlab.reports.report import Plot, Section, Series, Table
from attnlab.studies.rope_gqa.flawed import SHARED
from attnlab.studies.rope_gqa.sweep import HEADS, KV_HEADS, Sweep

FORWARD, BOTH, STEP = "attention forward", "attention forward and backward", "training step"
DECODED, MEMORY = "cache and decoding", "training memory"
FLAWED_TIMES, FLAWED_MEMORY = "flawed times", "flawed memory"
# what the paths are called in the code, and what they are
KERNELS = {
    "native": "attnlab's compiled path",
    "reference": "plain PyTorch",
    "tiled": "attnlab's path of tiles",
}
COMPARED = {
    FORWARD: "{} of the time for attention",
    BOTH: "{} with its backward pass",
    STEP: "{} for a training step",
    MEMORY: "{} of the memory of a step",
    DECODED: "{} times the tokens decoded in a second",
}
JOBS = (FORWARD, BOTH, STEP, DECODED, MEMORY, FLAWED_TIMES, FLAWED_MEMORY)


@dataclass(frozen=True)
class Costs:
    sweep: Sweep
    rows: list[dict[str, Any]]  # for each number of key/value heads; None: not reported
    flawed: dict[str, Any]  # what the flawed jobs gave
    kernels: dict[str, str]  # which every variant went through, by job
    refused: dict[str, str]  # jobs that report nothing, and why

    @property
    def summary(self) -> dict[str, Any]:
        six = self.row(HEADS)
        ratios = [
            {
                "kv_heads": row["kv_heads"],
                "cache": row["cache_bytes_per_token"] / six["cache_bytes_per_token"],
                **{job: _conclusion(row, six, job) for job in COMPARED},
            }
            for row in self.rows
        ]
        return {
            "sweep": {
                "rows": self.rows,
                "compared_with_six": ratios,
                "kernels": self.kernels,
                "not_reported": self.refused,
            },
            "flawed": self.flawed,
        }

    @property
    def answer(self) -> str:
        two, six = self.row(SHARED), self.row(HEADS)
        cache = two["cache_bytes_per_token"] / six["cache_bytes_per_token"]
        kept = f"Two key/value heads keep {cache:.2f} of the cache of six"
        found = ratio(two, six, FORWARD)
        if found is None:
            return f"{kept}; times are not reported, since no kernel serves all variants alike."
        taken = f"take {found:.2f} of the time for attention"
        if not told_apart(two[FORWARD], six[FORWARD]):
            taken = f"take a time for attention that cannot be told from theirs ({found:.2f} of it)"
        return f"{kept} and, through the same kernel ({self._kernel}), {taken}.{self._wrong}"

    @property
    def _kernel(self) -> str:
        return in_words(self.kernels.get(FORWARD, "not named"))

    @property
    def _wrong(self) -> str:
        """Calls from Python, flawed and fair: not the captured ones that the sweep times."""
        if "together" not in self.flawed or "fair" not in self.flawed:
            return ""
        flawed, fair = (
            self.flawed[name]["shared"] / self.flawed[name]["six"] for name in ("together", "fair")
        )
        return (
            f" Single calls from Python take {fair:.2f} of the time of six; the flawed protocol "
            f"reports {flawed:.2f}."
        )

    def row(self, kv_heads: int) -> dict[str, Any]:
        return next(row for row in self.rows if row["kv_heads"] == kv_heads)


def costs_of(results: dict[str, Any], sweep: Sweep) -> Costs:
    parts = {job: results[job] for job in JOBS}
    rows = []
    for kv_heads in KV_HEADS:
        name = str(kv_heads)
        cache = parts[DECODED]["cache"][name]
        row: dict[str, Any] = {"kv_heads": kv_heads}
        for job in (FORWARD, BOTH, STEP):
            row[job] = _times(parts[job].get("times", {}).get(name))
        decoded = parts[DECODED].get("times", {}).get(name)
        tokens = parts[DECODED]["tokens"]
        row[DECODED] = decoded and {
            "median": 1e3 * tokens / decoded["median"],
            "least": 1e3 * tokens / decoded["slowest"],
            "most": 1e3 * tokens / decoded["fastest"],
        }
        row[MEMORY] = parts[MEMORY].get("bytes", {}).get(name)
        row["cache_bytes_per_token"], row["cache_formula"] = cache["counted"], cache["formula"]
        rows.append(row)
    flawed = {"memory": parts[FLAWED_MEMORY], **parts[FLAWED_TIMES]}
    kernels = {job: part["kernel"] for job, part in parts.items() if "kernel" in part}
    refused = {job: part["refused"] for job, part in parts.items() if "refused" in part}
    return Costs(sweep, rows, flawed, kernels, refused)


def _times(found: dict[str, float] | None) -> dict[str, float] | None:
    return found and {
        "median": found["median"],
        "least": found["fastest"],
        "most": found["slowest"],
    }


def ratio(row: dict[str, Any], other: dict[str, Any], job: str) -> float | None:
    """Of the medians."""
    if row[job] is None or not other[job]["median"]:
        return None
    return float(row[job]["median"] / other[job]["median"])


def _conclusion(row: dict[str, Any], six: dict[str, Any], job: str) -> dict[str, Any] | None:
    found = ratio(row, six, job)
    if found is None:
        return None
    return {"ratio": found, "told_apart": told_apart(row[job], six[job])}


def told_apart(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether one of the medians lies outside of everything that was seen of the other."""
    inside = (
        other["least"] <= one["median"] <= other["most"],
        one["least"] <= other["median"] <= one["most"],
    )
    return not all(inside)


def section(costs: Costs) -> Section:
    sweep = costs.sweep
    spread = f"Medians, with the least and the most of up to {sweep.turns} turns in brackets."
    tables = [
        Table(
            title="Time and memory of training",
            columns=[
                "key/value heads",
                "attention, ms",
                "and backward, ms",
                "training step, ms",
                "peak of a step, MB",
            ],
            rows=[
                [
                    row["kv_heads"],
                    *(_spread(row[job]) for job in (FORWARD, BOTH, STEP)),
                    _spread(row[MEMORY], 1e-6),
                ]
                for row in costs.rows
            ],
            note=f"{spread} Of memory: {sweep.peaks} steps.",
        ),
        Table(
            title="Writing text",
            columns=[
                "key/value heads",
                "cache, bytes a token",
                "by the formula",
                "tokens a second",
            ],
            rows=[
                [
                    row["kv_heads"],
                    row["cache_bytes_per_token"],
                    row["cache_formula"],
                    _spread(row[DECODED]),
                ]
                for row in costs.rows
            ],
            note=spread,
        ),
    ]
    return Section(
        heading="What fewer key/value heads save",
        text=f"""Everything is the same but the number of key/value heads: rotary positions, six
        query heads, width {sweep.width}. Attention is one module on {sweep.batch} samples of
        {sweep.block} tokens; a training step is one of a model of depth {sweep.depth} on such a
        batch; its memory is the peak beyond weights and optimiser. Decoding continues from
        {sweep.block} cached tokens in {sweep.rows} texts side by side. The variants take turns in
        random order, the device is waited for before the clock is read, and the first turn does
        not count.

        The cache is what a model keeps of every token it has read, while it writes. Its bytes are
        counted from its tensors; the formula is 2 (keys and values) · layers · key/value heads ·
        head width · bytes of a number. It alone shrinks in proportion: queries, the output and
        the feed-forward layers remain as they are.

        {_compared(costs)}

        {_kernels(costs)}""",
        blocks=[*tables, _ratios(costs)],
    )


def _kernels(costs: Costs) -> str:
    by_kernel: dict[str, list[str]] = {}
    for job in (FORWARD, BOTH, STEP, DECODED, MEMORY):
        if job in costs.kernels:
            by_kernel.setdefault(costs.kernels[job], []).append(job)
    said = [f"{', '.join(jobs)}: {in_words(kernel)}" for kernel, jobs in by_kernel.items()]
    text = f"All variants ran through the same kernel ({'; '.join(said)})." if said else ""
    for job, why in costs.refused.items():
        text += (
            f" Not reported, {job}: the variants run through different kernels ({in_words(why)})."
        )
    return text


def in_words(kernel: str) -> str:
    for path, words in KERNELS.items():
        kernel = kernel.replace(path, words)
    return kernel


def _compared(costs: Costs) -> str:
    """The medians of two key/value heads by those of six."""
    two, six, parts = costs.row(SHARED), costs.row(HEADS), []
    for job, words in COMPARED.items():
        found = ratio(two, six, job)
        if found is not None:
            noise = "" if told_apart(two[job], six[job]) else " (no more than it varies by itself)"
            parts.append(words.format(f"{found:.2f}") + noise)
    return f"Two key/value heads instead of six: {', '.join(parts)}." if parts else ""


def _ratios(costs: Costs) -> Plot:
    names = {
        "attention forward": FORWARD,
        "attention forward and backward": BOTH,
        "training step": STEP,
        "memory of a step": MEMORY,
    }
    six = costs.row(HEADS)
    cache = [row["cache_bytes_per_token"] / six["cache_bytes_per_token"] for row in costs.rows]
    heads = [str(kv) for kv in KV_HEADS]
    series = [Series(name="cache", x=heads, y=cache)]
    for name, job in names.items():
        values = [ratio(row, six, job) for row in costs.rows]
        if None not in values:
            series.append(Series(name=name, x=heads, y=values))
    return Plot(
        title="Compared with six key/value heads",
        x="key/value heads",
        y="part of what six take",
        series=series,
        kind="bars",
    )


def _spread(found: dict[str, float] | None, unit: float = 1.0) -> str:
    """3.21 (3.10–3.90)"""
    if found is None:
        return "–"
    median, least, most = (_short(unit * found[name]) for name in ("median", "least", "most"))
    return f"{median} ({least}–{most})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
