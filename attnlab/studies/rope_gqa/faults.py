"""Faults of timing protocols in the rope-gqa experiment, one by one, and what each does."""

from dataclasses import asdict, dataclass
from typing import Any

from attnlab.reports.report import Section, Table
from attnlab.studies.rope_gqa.costs import in_words
from attnlab.studies.rope_gqa.flawed import SHARED
from attnlab.studies.rope_gqa.sweep import HEADS

SAME = 0.1  # what is so near is called as long
# reads the clock without waiting, empties the cache in both variants, subtracts memory_allocated()
SEEN_IN = (
    "https://github.com/vigkneshvr/RoPE-and-GQA-addition-to-minGPT2/blob/"
    "f5163dc9502b9e2c82a59d4212cefeb10bb631c3/mingpt/model.py"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault of a protocol."""

    fault: str
    reported: str
    true: str
    why: str


def section(flawed: dict[str, Any], one_batch: Row) -> Section:
    """`flawed`: what the jobs of attnlab/studies/rope_gqa/flawed.py gave."""
    rows = [*_time_rows(flawed), *_memory_rows(flawed["memory"]), one_batch]
    return Section(
        heading="What the flawed protocol would have reported",
        text=f"""A public solution of the homework reads the clock without waiting, empties the
        allocator's cache in the forward pass (of both variants) and takes memory after the pass
        minus before it ({SEEN_IN}). These faults and two more, different kernels and a cache
        emptied for one variant alone, are made here on
        purpose, one at a time and then together, in a forward pass of one attention module:
        "shared" has {SHARED} key/value heads, "six" has {HEADS}. The table has shared / six, or
        how many times as long shared takes. {_two_programs(flawed)}
        {_started_by_python(flawed)}""",
        blocks=[
            Table(
                title="Faults, and what they do",
                columns=["fault", "what it reports", "what is true", "why they differ"],
                rows=[list(asdict(row).values()) for row in rows],
            )
        ],
    )


def _two_programs(flawed: dict[str, Any]) -> str:
    if "kernels" not in flawed:
        return ""
    shared, six = (in_words(flawed["kernels"][name]) for name in ("shared", "six"))
    return (
        f"Where kernels differ, shared goes through {shared} with its keys copied to every head, "
        f"and six through {six}."
    )


def _started_by_python(flawed: dict[str, Any]) -> str:
    if flawed.get("device", "cpu") == "cpu":
        return ""
    return (
        "Every call is started by Python here, and that is part of its time; in the measurements "
        "above many calls are started at once."
    )


def _time_rows(flawed: dict[str, Any]) -> list[Row]:
    if "fair" not in flawed:
        return []
    fair, cpu = flawed["fair"], flawed["device"] == "cpu"
    return [
        Row(
            fault="the clock is read without waiting",
            reported=_pair(flawed["unsynchronised"]),
            true=_pair(fair),
            why=_not_waited_for(flawed),
        ),
        Row(
            fault="empty_cache() inside the forward pass of shared",
            reported=f"{flawed['emptying']:.3g} / – ms",
            true=f"{fair['shared']:.3g} / – ms",
            why="PyTorch keeps freed GPU memory to use again; to empty that store it waits for the "
            "GPU, and what comes next must ask for memory anew. Only one variant pays for it."
            if not cpu
            else "On a CPU there is no store of GPU memory to empty, so a difference is noise. "
            "On a GPU it waits for the device, and what comes next must ask for memory anew.",
        ),
        Row(
            fault="different kernels",
            reported=_times_of(flawed["other_kernels"]),
            true=_times_of(fair),
            why="One writes down copies of all keys and values and every score, the other never "
            "does: the clock compares two programs, not two models.",
        ),
        Row(
            fault="all of these together",
            reported=_times_of(flawed["together"]),
            true=_times_of(fair),
            why="On a CPU only the kernels can make a difference."
            if cpu
            else "To empty its store PyTorch waits for the GPU, so the clock measures the work of "
            "the shared variant, and of the other one only the launch.",
        ),
    ]


def _not_waited_for(flawed: dict[str, Any]) -> str:
    if flawed["device"] == "cpu":
        return (
            "On a CPU a call returns when its work is done, so a difference is noise. On a GPU it "
            "returns at once, and the clock measures the launch, not the work."
        )
    launch = "A call only launches work on a GPU and returns at once: the clock has measured the "
    seen = [flawed["unsynchronised"][name] / time for name, time in flawed["fair"].items()]
    if min(seen) > 1 - SAME:
        return f"{launch}launch, not the work. At this size the launch takes as long as the work."
    return f"{launch}launch, not the work."


def _memory_rows(memory: dict[str, Any]) -> list[Row]:
    if "peak" not in memory or any(None in found.values() for found in memory.values()):
        return []
    true = f"{_pair(memory['peak'], 1e-6, 'MB')} at the peak"
    return [
        Row(
            fault="memory after the pass minus before it",
            reported=_pair(memory["left"], 1e-6, "MB"),
            true=true,
            why="What a pass needs for a moment is gone when one looks: it does not count, and yet "
            "it decides whether the model fits. The backward pass is not in it at all.",
        ),
        Row(
            fault="the same, through different kernels",
            reported=_pair(memory["together"], 1e-6, "MB"),
            true=true,
            why="The copies and the scores of the plain kernel are kept for the backward pass; a "
            f"fused kernel never has them.{_upside_down(memory)}",
        ),
    ]


def _upside_down(memory: dict[str, Any]) -> str:
    more = memory["together"]["shared"] > memory["together"]["six"]
    less = memory["peak"]["shared"] <= memory["peak"]["six"]
    return " It looks as if sharing needed more memory." if more and less else ""


def _pair(found: dict[str, float], unit: float = 1.0, name: str = "ms") -> str:
    shared, six = (unit * found[which] for which in ("shared", "six"))
    return f"{shared:.3g} / {six:.3g} {name}"


def _times_of(found: dict[str, float]) -> str:
    return f"{found['shared'] / found['six']:.2f} × as long"
