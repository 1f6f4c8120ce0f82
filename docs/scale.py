"""Figures of docs/scale.md: what is calculated, and a training that measures its memory.

python docs/scale.py                                    the tables that are calculated, as Markdown
torchrun --nproc-per-node 4 docs/scale.py [KEY=VALUE…]  peak memory of each of four processes

The training is of a transformer of 76 million weights on a text of random letters; it takes two
steps and saves a checkpoint.
"""

import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path

MODELS = {"1.3 B": (2048, 24), "7 B": (4096, 32), "70 B": (8192, 80)}  # width, depth
GPUS = (8, 64, 1024)
VOCABULARY, CONTEXT = 32_000, 4096
PEAK, USED = 989e12, 0.4  # operations a second in bfloat16 (H100/H200 SXM, dense), and part of it
NETWORK = 50e9  # bytes a second between machines, for each GPU (400 Gbit/s)
INSIDE = 450e9  # bytes a second between the 8 GPUs of a machine, each way
DISK = 2e9  # bytes a second that one machine of 8 GPUs writes to a disk that all share
HASH = 1.2e9  # bytes a second that one process hashes
TOKENS = 8192  # of a step, for each GPU

WORDS = ["model.width=1024", "model.depth=6", "model.context=32", "model.attention.heads=8"]
WORDS += ["batch=4", "steps=2", "save_every=1", "evaluate_every=none", "parallel=fsdp"]
WORDS += ["device=cpu", "optimiser=adamw", "keep=1"]


def weights(width: int, depth: int) -> int:
    """Of a transformer with tied embeddings: 12 width² a layer, and the table."""
    return 12 * depth * width**2 + VOCABULARY * width


def shard_bytes(count: int, gpus: int) -> float:
    """Weights, gradients, two moments of AdamW: float32. Once more weights while it gets ready."""
    return 16 * count / gpus


def gathered_bytes(width: int) -> float:
    """Two blocks in bfloat16: the one at work and the next one; the largest gradient in float32."""
    return 2 * 12 * width**2 * 2 + 12 * width**2 * 4


def activation_bytes(width: int, depth: int, *, recompute: bool) -> float:
    """For each token 34 bytes a layer and width (half precision, attention without its matrix)."""
    layer = 34 * width * TOKENS
    kept = 2 * width * TOKENS * depth + layer if recompute else layer * depth
    return kept + 3 * 4 * VOCABULARY * TOKENS  # logits, their softmax, its gradient


def table(title: str, rows: list[list[str]]) -> str:
    lines = [" | ".join(row) for row in rows]
    lines.insert(1, "|".join("---" for _ in rows[0]))
    return f"{title}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"


def calculated() -> str:
    memory = [["model", "GPUs", "shard", "gathered", "activations", "with recompute", "together"]]
    speed = [["model", "GPUs", "tokens a step", "arithmetic", "network", "tokens a second at best"]]
    saves = [["model", "GPUs", "checkpoint", "a process writes", "seconds to save", "to resume"]]
    for name, (width, depth) in MODELS.items():
        count = weights(width, depth)
        for gpus in GPUS:
            shard, gathered = shard_bytes(count, gpus), gathered_bytes(width)
            plain, again = (activation_bytes(width, depth, recompute=one) for one in (False, True))
            parts = [shard, gathered, plain, again, shard + gathered + again]
            memory.append([name, f"{gpus:,}", *(f"{one / 1e9:.1f} GB" for one in parts)])
            compute = 8 * count * TOKENS / (PEAK * USED)  # 6, and 2 more to recompute
            network = (2 + 2 + 4) * count * (gpus - 1) / gpus
            network /= INSIDE if gpus <= 8 else NETWORK
            step = max(compute, network)
            taken = [f"{compute:.2f} s", f"{network:.2f} s", f"{TOKENS * gpus / step:,.0f}"]
            speed.append([name, f"{gpus:,}", f"{TOKENS * gpus:,}", *taken])
            size, machines = 12 * count, max(gpus // 8, 1)
            save = size / gpus / HASH + size / machines / DISK
            resume = 2 * size / machines / DISK + 2 * size / gpus / HASH
            taken = [f"{size / gpus / 1e9:.2f} GB", f"{save:.1f} s", f"{resume:.1f} s"]
            saves.append([name, f"{gpus:,}", f"{size / 1e9:.0f} GB", *taken])
    return "\n".join([table("Memory", memory), table("Steps", speed), table("Checkpoints", saves)])


def peak() -> int:
    """Bytes that this process has had in memory at most."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def measure(words: list[str]) -> None:
    import torch
    import torch.distributed.fsdp

    from attnlab.training import launch
    from attnlab.training.report import Report

    torch.set_num_threads(1)
    before = peak()
    with tempfile.TemporaryDirectory() as private:
        place = Path(os.environ.get("SCALE_FOLDER", private))
        text = place / f"text-{os.environ.get('RANK', 0)}"
        text.write_text("".join(random.Random(0).choices("abcdefgh .\n", k=20_000)))
        rank = int(os.environ.get("RANK", 0))
        launch.launch(
            "tiny",
            [f"data={text}", *WORDS, *words],
            root=place / "runs",
            make_report=lambda world: Report(),
        )
    print(json.dumps({"rank": rank, "imported": before, "peak": peak(), "more": peak() - before}))


if __name__ == "__main__":
    if "RANK" in os.environ or sys.argv[1:2] == ["measure"]:
        measure([word for word in sys.argv[1:] if word != "measure"])
    else:
        print(calculated())
