"""Generation: a model continues texts of any lengths side by side, one token of each at a step.

Axes: b rows, t time, v vocabulary.
Cost: a step is one forward pass over one token of every row, through the model's cache.

Rows are padded on the left and never attend to each other. What a row reads depends on that row
alone, so its answer does too: at temperature 0 everything is computed in float64, where the
rounding that changes with the batch (1e-15) is far below what decides between two tokens (1e-9).
That takes a copy of the model, so a large one or one in half precision does it only if asked
(`exact`): without it rounding may decide, and rounding differs from batch to batch. Above 0 the
model computes in its own precision, and each token takes one uniform number of its own.

A step of a standard transformer on the CPU is one call into C (models/decoding.py), on devices that
capture it the replay of a graph (models/graphs.py); else it is the model's own forward pass.

Where positions are limited, a row of n tokens is read from s(n), which moves on in halves of the
limit; the cache is filled anew when it does.
"""

import copy
import math
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab import counter_rng
from attnlab.attention.cache import MOST_EXPECTED, Cache
from attnlab.config import setting, settings
from attnlab.models import static_step
from attnlab.models.decoding import Plan, plan
from attnlab.models.graphs import AHEAD, Loop
from attnlab.models.model import Decoder, LanguageModel, parameters
from attnlab.models.transformer import Transformer

M = TypeVar("M", bound=nn.Module)

EXACT_PARAMETERS = 1 << 26  # a copy of so many in float64 is half a gigabyte
DRAWN = 64  # uniform numbers of a row that are made at once

TIE = 1e-9  # logits so near the top one are equal, and the lowest token wins


@settings
class Sampling:
    """How a token is picked; at temperature 0 the likeliest, and the rest does not matter."""

    temperature: float = setting(
        1.0,
        low=0,
        because="logits are divided by it, and 0 takes the likeliest token",
        about="divisor of the logits; 0: always the likeliest token",
    )
    top_k: int | None = setting(
        None,
        low=1,
        because="it counts tokens",
        none="all tokens",
        about="likeliest tokens to choose from",
    )
    top_p: float | None = setting(
        None,
        above=0,
        high=1,
        because="it is a probability",
        none="all tokens",
        about="probability that the likeliest tokens to choose from reach together",
    )
    seed: int = setting(0, about="random seed")
    exact: bool | None = setting(
        None,
        none="as the model's size allows",
        about="whether temperature 0 computes in float64, so that no text depends on its batch; "
        f"none: up to {EXACT_PARAMETERS:,} parameters, none of them in half precision",
    )


PLAIN = Sampling()


class Picked(NamedTuple):
    row: int
    token: int
    log_probability: float  # by the model itself, before temperature, top_k and top_p


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling = PLAIN,
    stop: int | None = None,
    use_cache: bool = True,
    on_token: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """What the model adds to each prompt: up to `tokens` tokens, ending before `stop`.

    `on_token(row, token)` is called for each token of the answers as it appears.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    taken = steps(model, prompts, tokens=tokens, sampling=sampling, stop=stop, use_cache=use_cache)
    with closing(taken):
        for row, token, _ in (picked for step in taken for picked in step):
            if token != stop:
                answers[row].append(token)
                if on_token is not None:
                    on_token(row, token)
    return answers


def steps(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling = PLAIN,
    stop: int | None = None,
    use_cache: bool = True,
) -> Generator[list[Picked], None, None]:
    """Step by step, the token of each row that has not ended; `stop` itself is among them.

    The model is in eval mode until the steps are used up or closed.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; ask for 1 or more")
    vocabulary = model.settings.vocabulary
    texts = _check_prompts(prompts, vocabulary)
    if stop is not None and not 0 <= stop < vocabulary:
        raise ValueError(f"stop is {stop}; it is a token: use 0 to {vocabulary - 1}")
    if sampling.temperature == 0 and is_exact(model, sampling):
        model = precise(model)
    return _steps(model, texts, tokens, sampling, stop, use_cache)


def is_exact(model: nn.Module, sampling: Sampling) -> bool:
    """Whether temperature 0 takes the model in float64."""
    if sampling.exact is not None:
        return sampling.exact
    wide = all(one.dtype in (torch.float32, torch.float64) for one in model.parameters())
    return wide and parameters(model) <= EXACT_PARAMETERS


def warn_of_rounding(model: nn.Module, sampling: Sampling) -> str | None:
    """What to tell a person whose text rounding may decide; None: it does not."""
    if sampling.temperature > 0 or is_exact(model, sampling):
        return None
    dtypes = {str(one.dtype).removeprefix("torch.") for one in model.parameters()}
    if dtypes == {"float64"}:
        return None
    return (
        f"computed in {' and '.join(sorted(dtypes))} ({parameters(model):,} parameters): rounding "
        "may decide between tokens, so the text may depend on its batch; with `exact` a copy in "
        "float64 computes it"
    )


def precise(model: M) -> M:
    """The model in float64: itself if it is, else a copy."""
    if all(parameter.dtype == torch.float64 for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).double()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every part of the model in eval mode, and afterwards each in the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _steps(
    model: LanguageModel,
    texts: list[list[int]],
    tokens: int,
    sampling: Sampling,
    stop: int | None,
    use_cache: bool,
) -> Generator[list[Picked], None, None]:
    going = list(range(len(texts)))
    with evaluating(model), closing(_Reader(model, texts, sampling, tokens, use_cache)) as reader:
        for number in range(tokens):
            if not going:
                return
            with torch.inference_mode():  # not around the yield: it would hold for the caller too
                picked = reader.step(going, number)
            yield picked
            going = [row for row, token, _ in picked if token != stop]


class _Reader:
    """A model over texts that grow. Reads what is new, or all anew where it must."""

    def __init__(
        self,
        model: LanguageModel,
        texts: list[list[int]],
        sampling: Sampling,
        tokens: int,
        use_cache: bool,
    ) -> None:
        """The model is in eval mode; `tokens` will be added to each text at most."""
        self.model = model
        self.texts = texts
        self.sampling = sampling
        self.tokens = tokens
        self.device = next(model.parameters()).device
        self.longest = model.longest
        self.cache = model.new_cache() if isinstance(model, Decoder) and use_cache else None
        self.rows: list[int] = []  # those in the cache, also ended ones, which nobody looks at
        self.starts: dict[int, int] = {}  # the first token of each that the cache holds
        self.newest = self.positions = torch.empty(0)  # [b, 1], on the device
        self.plan: Plan | None = None  # of a step of one token
        self.planned = False
        self.draws = _Draws()
        self.loop: Loop | None = None  # steps on the device, which feed themselves
        self._expect(max(map(len, texts), default=0))

    def _expect(self, prompt: int) -> None:
        """Room in the cache for the longest prompt and what will come."""
        longest = math.inf if self.longest is None else self.longest
        room = int(min(prompt + self.tokens, longest))
        if isinstance(self.cache, Cache) and static_step.why_not(self.model) is None:
            assert isinstance(self.model, Transformer)
            room = max(min(room, MOST_EXPECTED), min(prompt + 1, room))
            step, sampling = static_step.StaticStep(self.model, room), self.sampling
            # a function that held this reader would keep its memory until garbage is collected
            self.loop = Loop(step, lambda logits, uniform: _pick(logits, sampling, uniform))
            self.cache = step.cache
        elif isinstance(self.cache, Cache):
            self.cache.expect(room)

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()

    def step(self, going: list[int], number: int) -> list[Picked]:
        """Token `number` of each row that has not ended."""
        if self.loop is not None and self._stays(going):
            table = self.loop.next(self._ahead(going), left=self.tokens - number)
        else:
            table = self._choose(self._logits(going), number)
        ongoing, picked = set(going), []
        for row, (token, log) in zip(self.rows, table, strict=True):
            if row not in ongoing:
                continue
            if math.isnan(log):
                raise ValueError(
                    f"the logits of row {row} after {len(self.texts[row])} tokens are not finite; "
                    "the model has diverged: use an earlier checkpoint"
                )
            self.texts[row].append(int(token))
            picked.append(Picked(row, int(token), log))
        return picked

    def _choose(self, logits: Float[Tensor, "b v"], number: int) -> list[list[float]]:
        uniform = self.draws.of(self.sampling, self.rows, number, logits.device)
        chosen, logs = _pick(logits, self.sampling, uniform)
        self.newest = chosen[:, None]
        if self.loop is not None:
            draw = None if uniform is None else partial(_uniform, self.sampling.seed, self.rows)
            self.loop.begin(self.newest, self.positions + 1, number + 1, draw)
        # the one time in a step that the device is waited for; float64 holds a token exactly
        return torch.stack((chosen.double(), logs), dim=1).tolist()

    def _stays(self, going: list[int], later: int = 0) -> bool:
        """Whether the cache serves rows that are so many tokens longer than now."""
        return all(
            first_seen(len(self.texts[row]) + later, self.longest) == self.starts.get(row)
            for row in going
        )

    def _ahead(self, going: list[int]) -> int:
        """How many more steps the cache will serve, up to AHEAD."""
        for count in range(AHEAD):
            if not self._stays(going, count + 1):
                return count
        return AHEAD

    def _logits(self, going: list[int]) -> Float[Tensor, "b v"]:
        """Logits for the next token of `self.rows`; every row that has not ended is among them."""
        if not isinstance(self.model, Decoder):  # it has no padding mask: a row at a time
            self.rows = going
            alone = (torch.tensor([self.texts[row]], device=self.device) for row in going)
            return torch.stack([self.model(tokens)[0, -1] for tokens in alone])
        if self.cache is None or not self._stays(going):
            self.rows = going
            self.starts = {row: first_seen(len(self.texts[row]), self.longest) for row in going}
            return self._read_anew()
        self.positions = self.positions + 1
        if self.longest is not None:  # a row that has ended is still read: any position will do
            self.positions = self.positions.clamp(max=self.longest - 1)
        if not self.planned:
            self.plan, self.planned = plan(self.model, self.cache), True
        if self.plan is not None:
            return self.plan(self.newest, self.positions)
        return self.model(self.newest, positions=self.positions, cache=self.cache)[:, -1]

    def _read_anew(self) -> Float[Tensor, "b v"]:
        seen = [self.texts[row][self.starts[row] :] for row in self.rows]
        length = max(map(len, seen))
        padding = [length - len(text) for text in seen]
        rows = [[0] * pad + text for pad, text in zip(padding, seen, strict=True)]
        tokens = torch.tensor(rows, device=self.device)
        positions = torch.arange(length, device=self.device) - torch.tensor(
            padding, device=self.device
        ).unsqueeze(1)
        if self.cache is not None:
            self.cache.reset()
        self.positions = positions[:, -1:]
        # logits of a whole prompt may be the largest thing there is
        last = {"last": True} if isinstance(self.model, Transformer) else {}
        return self.model(
            tokens,
            positions=positions.clamp(min=0),
            # without padding attention needs no mask, now and at each step to come
            key_padding=positions < 0 if any(padding) else None,
            cache=self.cache,
            **last,
        )[:, -1]


def first_seen(length: int, longest: int | None) -> int:
    """The first token that is read of a text: 0, or a multiple of half the limit."""
    if longest is None or length <= longest:
        return 0
    half = max(longest // 2, 1)
    return -(-(length - longest) // half) * half


class _Draws:
    """Uniform numbers, one for each row and token: functions of both, made for many tokens at once.

    In float64, on the device of the logits.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.first = 0
        self.made = torch.empty(0, 0)

    def of(
        self, sampling: Sampling, rows: list[int], number: int, device: torch.device
    ) -> Float[Tensor, " b"] | None:
        """None where nothing is drawn."""
        if sampling.temperature == 0:
            return None
        if rows != self.rows or not 0 <= number - self.first < self.made.shape[1]:
            self.rows, self.first = list(rows), number
            self.made = _uniform(sampling.seed, rows, number).to(device)
        return self.made[:, number - self.first]


def _uniform(seed: int, rows: Sequence[int], first: int) -> Float[Tensor, "{len(rows)} _n"]:
    """For DRAWN tokens of each row, from number `first` of its answer on."""
    numbers = np.arange(first, first + DRAWN)
    return torch.from_numpy(
        counter_rng.uniform(seed, "sample", np.asarray(rows, dtype=np.int64)[:, None], numbers)
    )


def pick(
    logits: Float[Tensor, "b v"], sampling: Sampling, rows: Sequence[int], number: int
) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
    """A token for each row, and the logarithm of its probability.

    `rows` and `number` (of the token in its answer) choose the random numbers.
    """
    return _pick(logits, sampling, _Draws().of(sampling, list(rows), number, logits.device))


def _pick(
    logits: Float[Tensor, "b v"], sampling: Sampling, uniform: Float[Tensor, " b"] | None
) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
    logits = logits.double()
    if uniform is None:
        top = logits.amax(-1, keepdim=True)
        near = logits >= top - TIE * top.abs().clamp(min=1)
        chosen = near.byte().argmax(-1)  # the first of them
    else:
        chosen = _draw(probabilities(logits, sampling), uniform)
    return chosen, logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]


def _draw(likely: Float[Tensor, "b v"], uniform: Float[Tensor, " b"]) -> Int[Tensor, " b"]:
    total = likely.cumsum_(-1)  # in place: with many rows these are large
    return (total <= uniform[:, None] * total[:, -1:]).sum(-1)


def probabilities(logits: Float[Tensor, "b v"], sampling: Sampling) -> Float[Tensor, "b v"]:
    """Temperature, then top_k, then top_p. What is left of the last need not add up to 1."""
    scaled = logits
    if sampling.temperature != 1:  # less the largest, so that a small one cannot overflow
        scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if sampling.top_k is None and sampling.top_p is None:
        return scaled.softmax(-1)
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)  # a tie: the lower
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = -math.inf
    likely = ranked.softmax(-1)
    if sampling.top_p is not None:
        reached = nn.functional.pad(likely.cumsum(-1)[:, :-1], (1, 0))  # by those before each
        likely = likely.masked_fill(reached >= sampling.top_p, 0)
    return torch.zeros_like(likely).scatter(-1, order, likely)


def _check_prompts(prompts: Sequence[Sequence[int]], vocabulary: int) -> list[list[int]]:
    texts = [[operator.index(token) for token in prompt] for prompt in prompts]
    for row, text in enumerate(texts):
        if not text:
            raise ValueError(f"prompt {row} is empty; give at least one token to continue")
        for token in text:
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"prompt {row} has token {token}; the model knows 0 to {vocabulary - 1}: "
                    "use the tokenizer it was trained with"
                )
    return texts
