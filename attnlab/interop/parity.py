"""Parity: a folder of `transformers` and a model of ours compute the same, proved by running both.

Ours computes logits and greedy texts in float64; a fresh process with `transformers` alone loads
the folder and compares (proof.py). What it takes: both models once in float64.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attnlab import json_files
from attnlab.attention.positions import Rotary
from attnlab.data.tokens import Tokenizer
from attnlab.extras import missing
from attnlab.generate import Sampling, generate, precise
from attnlab.interop import proof, tokens
from attnlab.interop.fields import short
from attnlab.models.model import LanguageModel, ModelSettings
from attnlab.models.transformer import TransformerSettings

LOGITS = 1e-10  # float64: rounding of sums in another order gives 1e-15 to 1e-12
FLOAT32 = 1e-2  # of what float32 rounds; more is another function
LENGTH, COUNT = 96, 64  # tokens of the compared text, at least, and of the greedy ones
LONGEST, BEYOND = 1024, 32  # what begins later is not reached; tokens behind where it begins
PATIENCE = 1200  # seconds


class NotProved(ValueError):
    """The two models differ, or could not be compared: what was found."""


@dataclass(frozen=True)
class Parity:
    architecture: str
    logits: float  # largest difference of the largest, in float64
    float32: float  # the same of the folder as it is, in float32, to ours in float64
    cached: bool  # greedy texts are the same
    uncached: bool
    left_padded: bool  # three rows of different lengths, side by side
    tokenizer: bool | None  # ids and text are the same; None: not compared
    tokens: int  # of the text whose logits were compared
    greedy: int  # tokens of each greedy text
    unreached: tuple[str, ...]  # settings that act on longer texts only: not compared
    transformers: str
    torch: str
    other_text: str | None = None  # of which the tokenizer there makes something else

    @property
    def holds(self) -> bool:
        texts = self.cached and self.uncached and self.left_padded
        numbers = self.logits <= LOGITS and self.float32 <= FLOAT32
        return texts and numbers and self.tokenizer is not False

    def to_json(self) -> dict[str, Any]:
        return {"holds": self.holds, **asdict(self)}

    def complaint(self) -> str:
        """What does not hold, in words."""
        wrong = []
        if not self.logits <= LOGITS:
            wrong.append(f"logits differ by {self.logits:.1e} of the largest (at most {LOGITS})")
        if not self.float32 <= FLOAT32:
            wrong.append(f"in float32 logits are off by {self.float32:.1e} (at most {FLOAT32})")
        names = {"cached": "greedy texts", "uncached": "greedy texts without a cache"}
        names |= {"left_padded": "greedy texts of a left-padded batch"}
        wrong += [f"{said} differ" for name, said in names.items() if not getattr(self, name)]
        if self.tokenizer is False:
            what = short(repr(self.other_text))
            wrong.append(f"the tokenizer gives other ids or another text, as for {what}")
        return "; ".join(wrong)


def compare(
    folder: Path,
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    *,
    trust: bool = False,
    code: Path | None = None,
) -> Parity:
    """`trust`: run the folder's own modelling file, which must be one that we have just written.

    `code`: the modelling file of ours, for a folder whose own is not to be run.
    """
    exact = precise(model).cpu().eval()
    longest = model.longest or 1 << 20
    far = reaches(model.settings)
    near = [one for _, one in far if one <= LONGEST]
    length = min(max([LENGTH, *(one + BEYOND for one in near)]), longest)
    vocabulary = model.settings.vocabulary
    draws = torch.Generator().manual_seed(0)
    given = torch.randint(vocabulary, (2, length), generator=draws)
    prompts = [given[0, :9].tolist(), given[1, :4].tolist(), given[0, 9:10].tolist()]
    count = max(1, min(COUNT, longest - 9))
    with torch.inference_mode():
        logits = exact(given)
    answers = generate(exact, prompts, tokens=count, sampling=Sampling(temperature=0))
    request = {
        "trust": trust,
        "code": None if code is None else str(code),
        "count": count,
        "prompts": prompts,
        "answers": answers,
        "texts": [] if tokenizer is None else _texts(tokenizer, tokens.named(folder)),
    }
    found = _in_child(folder, request, {"tokens": given, "logits": logits.clone()})
    return Parity(
        architecture=found["class"],
        logits=found["logits"],
        float32=found["float32"],
        cached=found["cached"],
        uncached=found["uncached"],
        left_padded=found["left padded"],
        tokenizer=found["tokenizer"],
        tokens=length,
        greedy=count,
        unreached=tuple(f"{name} of {one:,}" for name, one in far if one >= length),
        transformers=found["transformers"],
        torch=torch.__version__,
        other_text=found.get("other_text"),
    )


def reaches(settings: ModelSettings) -> list[tuple[str, int]]:
    """Settings that change something only after so many tokens."""
    if not isinstance(settings, TransformerSettings):
        return []
    found = [
        (name, one)
        for name in ("window", "chunk")
        for one in sorted({one for one in getattr(settings, name) if one is not None})
    ]
    positions = settings.positions
    if isinstance(positions, Rotary) and positions.temperature is not None:
        found.append(("temperature_step", positions.temperature_step))
    return found


def _texts(tokenizer: Tokenizer, named: list[str]) -> list[dict[str, Any]]:
    """With what ours makes of them: of samples, and of each token that the folder names."""
    made: list[dict[str, Any]] = []
    for text in [*tokens.samples(tokenizer), *named]:
        try:
            ids, marked = tokenizer.encode(text), tokenizer.prompt(text)
        except ValueError:
            made.append({"text": text, "ids": None, "marked": None, "back": None})
            continue
        back = tokenizer.decode(ids)
        made.append({"text": text, "ids": ids.tolist(), "marked": marked.tolist(), "back": back})
    return made


def _in_child(
    folder: Path, request: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, Any]:
    import safetensors.torch

    _require_transformers()
    with tempfile.TemporaryDirectory(prefix="attnlab-parity-") as place:
        here = Path(place)
        (here / "request.json").write_bytes(json_files.as_json(request, indent=None))
        safetensors.torch.save_file(tensors, here / "request.safetensors")
        # -P: the folder of the script holds modules of ours, and none of them is to be found
        command = [sys.executable, "-P", proof.__file__, str(folder.absolute()), place]
        # the child ends when this pipe does: with us, however we end
        theirs, ours = os.pipe()
        try:
            ended = subprocess.run(
                command,
                stdin=theirs,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
                cwd=place,
            )
        except subprocess.TimeoutExpired:
            raise NotProved(f"the proof took longer than {PATIENCE} seconds") from None
        finally:
            os.close(theirs)
            os.close(ours)
    if ended.returncode != 0:
        raise NotProved(f"transformers could not run {folder}: {_last(ended.stderr)}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _last(text: str) -> str:
    lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"


def _require_transformers() -> None:
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        raise ValueError(missing("transformers", "the proof of an export or import"))
