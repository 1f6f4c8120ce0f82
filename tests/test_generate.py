"""Generation: a row's answer is its own, whatever else is in the batch and however it is read."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from attnlab import config, counter_rng, registry
from attnlab import generate as generation
from attnlab.attention import cache as caches
from attnlab.attention.cache import FullCache
from attnlab.attention.heads import is_recurrent
from attnlab.generate import (
    EXACT_PARAMETERS,
    Sampling,
    first_seen,
    generate,
    is_exact,
    pick,
    precise,
    probabilities,
    steps,
    warn_of_rounding,
)
from attnlab.models.transformer import TransformerSettings

VOCABULARY, CONTEXT = 13, 12
GREEDY = Sampling(temperature=0)
SMALL = TransformerSettings(vocabulary=VOCABULARY, context=CONTEXT, width=16, depth=2, tied=False)

SCHEMES = [option.name for option in registry.options("positions")]
TRANSFORMERS = [
    *(
        (f"positions={scheme}", f"window={window}")
        for scheme in SCHEMES
        for window in ("3", "none")
    ),
    *(
        (f"attention={o.name}", "positions=none" if is_recurrent(o.name) else "window=3,none")
        for o in registry.options("attention")
    ),
    *((f"score={option.name}", "window=3,none") for option in registry.options("score")),
]
RECURRENT = [("elman",), ("prefix-birnn",), ("birnn",)]
EVERY = pytest.mark.parametrize("words", [*TRANSFORMERS, *RECURRENT], ids=" ".join)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """For products this small a second thread is only waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def build(*words, dtype=torch.float32):
    torch.manual_seed(0)
    if words in RECURRENT:
        model = registry.load("model", words[0])(vocabulary=VOCABULARY, width=16).build()
    else:
        model = config.override(SMALL, words).build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # far from the start, where everything is flat
    return model.to(dtype)


def prompt(length, seed=0):
    return (counter_rng.bits(seed, "prompt", np.arange(length)) % VOCABULARY).tolist()


PROMPTS = [prompt(length, seed) for seed, length in enumerate([4, 1, 9, 4, 12, 17, 30])]


@torch.no_grad()
def plain_loop(model, text, tokens):
    """The definition: read all the row may see, take the likeliest, again."""
    model, text, start = precise(model).eval(), list(text), len(text)
    longest = getattr(getattr(model, "positions", None), "longest", None) or math.inf
    for _ in range(tokens):
        first = 0
        while len(text) - first > longest:
            first += CONTEXT // 2
        text.append(int(model(torch.tensor([text[first:]]))[0, -1].argmax()))
    return text[start:]


@EVERY
def test_greedy_is_the_plain_loop_alone_in_a_batch_and_without_a_cache(words):
    model, tokens = build(*words), 14
    want = [plain_loop(model, text, tokens) for text in PROMPTS]
    assert len({token for answer in want for token in answer}) > 3  # there is something to get
    for use_cache in (True, False):
        options = {"tokens": tokens, "sampling": GREEDY, "use_cache": use_cache}
        assert generate(model, PROMPTS, **options) == want
        assert generate(model, PROMPTS[1::-1], **options) == want[1::-1]
        alone = [generate(model, [text], **options)[0] for text in PROMPTS[-3:]]
        assert alone == want[-3:]


def test_greedy_tells_tokens_apart_that_float32_confuses():
    """Twin tokens whose weights differ in the last bit: rounding in float32 would choose."""
    model = config.override(SMALL, ["positions=rotary"]).build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        upwards = torch.tensor([math.inf, -math.inf]).repeat(SMALL.width // 2)
        model.head.weight[1::2] = model.head.weight[:-1:2].nextafter(upwards)
    want = [plain_loop(model, text, 20) for text in PROMPTS]
    assert generate(model, PROMPTS, tokens=20, sampling=GREEDY) == want
    assert [generate(model, [text], tokens=20, sampling=GREEDY)[0] for text in PROMPTS] == want


def test_only_small_models_in_full_precision_are_computed_in_float64(monkeypatch):
    small = build("positions=none")
    half = config.override(SMALL, []).build().bfloat16()
    double = build("positions=none", dtype=torch.float64)
    assert [is_exact(one, GREEDY) for one in (small, half, double)] == [True, False, True]
    count = sum(parameter.numel() for parameter in small.parameters())
    for most, exact in ((count, True), (count - 1, False)):
        monkeypatch.setattr(generation, "EXACT_PARAMETERS", most)
        assert is_exact(small, GREEDY) == exact
    for asked in (True, False):
        for model in (small, half):
            assert is_exact(model, Sampling(temperature=0, exact=asked)) == asked
    assert EXACT_PARAMETERS == 2**26


@pytest.mark.parametrize("exact", [None, False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_is_copied_only_where_temperature_0_is_exact(exact, dtype, monkeypatch):
    copied, model = [], config.override(SMALL, []).build().to(dtype)
    monkeypatch.setattr(generation, "precise", lambda one: copied.append(one) or precise(one))
    for temperature in (0, 1):
        sampling = Sampling(temperature=temperature, exact=exact)
        assert [
            len(text) for text in generate(model, PROMPTS[:2], tokens=3, sampling=sampling)
        ] == [3, 3]
    want = exact if exact is not None else dtype == torch.float32
    assert copied == [model] * want


def test_whoever_gets_a_text_that_rounding_may_decide_is_told():
    model = config.override(SMALL, []).build()
    half = config.override(SMALL, []).build().bfloat16()
    off = Sampling(temperature=0, exact=False)
    assert warn_of_rounding(model, GREEDY) is None
    assert warn_of_rounding(model, Sampling(exact=False)) is None  # sampled in any case
    assert warn_of_rounding(model.double(), off) is None
    told = warn_of_rounding(half, GREEDY)
    assert told is not None and told.startswith("computed in bfloat16 (")
    assert "may depend on its batch; with `exact`" in told
    assert warn_of_rounding(model.float(), off).startswith("computed in float32 (")


PLANNED = [*TRANSFORMERS[:12], ("attention=grouped", "window=3,none", "feedforward=swiglu")]


@pytest.mark.parametrize("words", PLANNED, ids=" ".join)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_text_is_that_of_the_plain_forward_pass(words, dtype, monkeypatch):
    """With these seeds; in float32 a number that falls on a boundary could choose otherwise."""
    model, sampling = build(*words, dtype=dtype), Sampling(seed=4, temperature=0.9, top_k=9)
    texts = [generate(model, PROMPTS, tokens=15, sampling=one) for one in (sampling, GREEDY)]
    monkeypatch.setattr(generation, "plan", lambda model, cache: None)
    assert texts == [
        generate(model, PROMPTS, tokens=15, sampling=one) for one in (sampling, GREEDY)
    ]


def test_numbers_are_drawn_as_if_each_were_drawn_alone(monkeypatch):
    """Also beyond those that are made at once, and after rows have ended."""
    model, sampling = build("positions=rotary", dtype=torch.float64), Sampling(seed=7)
    monkeypatch.setattr(generation, "DRAWN", 5)
    found = generate(model, PROMPTS[:4], tokens=33, sampling=sampling, stop=2)
    assert len({len(text) for text in found}) > 1
    monkeypatch.setattr(generation, "DRAWN", 1)
    monkeypatch.setattr(generation, "plan", lambda model, cache: None)
    assert found == generate(
        model, PROMPTS[:4], tokens=33, sampling=sampling, stop=2, use_cache=False
    )


@EVERY
def test_a_sampled_row_does_not_depend_on_the_rows_after_it(words):
    """In float64, so that rounding does not decide; in float32 it may, once in a million tokens."""
    model, sampling = build(*words, dtype=torch.float64), Sampling(temperature=1.5, seed=3)
    together = generate(model, PROMPTS, tokens=12, sampling=sampling)
    for count, use_cache in ((1, True), (3, True), (5, False)):
        fewer = PROMPTS[:count]
        got = generate(model, fewer, tokens=12, sampling=sampling, use_cache=use_cache)
        assert got == together[:count]


def test_the_seed_decides_what_is_sampled():
    model = build("positions=rotary")
    first, same, other = (
        generate(model, PROMPTS, tokens=20, sampling=Sampling(seed=seed)) for seed in (1, 1, 2)
    )
    assert first == same and all(a != b for a, b in zip(first, other, strict=True))
    twice = generate(model, [PROMPTS[0]] * 2, tokens=20, sampling=Sampling(seed=1))
    assert twice[0] != twice[1]  # rows have numbers of their own


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(temperature=1e-320)], ids=str
)
def test_only_the_likeliest_is_greedy(sampling):
    model = build("positions=rotary")
    want = generate(model, PROMPTS, tokens=20, sampling=GREEDY)
    assert generate(model, PROMPTS, tokens=20, sampling=sampling) == want


def by_hand(logits, temperature, top_k, top_p):
    weights = [math.exp(logit / temperature) for logit in logits]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: top_k or len(order)]
    total = sum(weights[token] for token in order)
    kept, reached = [], 0.0
    for token in order:
        if top_p is None or reached < top_p:
            kept.append(token)
            reached += weights[token] / total
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


LOGITS = [0.3, 1.2, -0.4, 1.2, -3.0, 0.9]


@pytest.mark.parametrize("top_k", [None, 1, 2, 4, 6, 99])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.6, 0.95, 1.0])
def test_temperature_comes_first_then_top_k_then_top_p(top_k, top_p):
    for temperature in (0.5, 1.0, 2.0):
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        got = probabilities(torch.tensor([LOGITS], dtype=torch.float64), sampling)[0]
        want = by_hand(LOGITS, temperature, top_k, top_p)
        assert (got / got.sum()).tolist() == pytest.approx(want, abs=1e-12)


def test_top_p_stops_as_soon_as_it_is_reached():
    logits = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64).log()
    assert probabilities(logits, Sampling(top_p=0.5)).count_nonzero() == 1
    assert probabilities(logits, Sampling(top_p=0.51)).count_nonzero() == 2


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.8}], ids=str)
def test_tokens_are_as_frequent_as_they_are_probable(options):
    """20,000 draws of a fixed seed; a right sampler is beyond the bound for 1 seed in 10^6."""
    draws, sampling = 20_000, Sampling(seed=5, **options)
    logits = torch.tensor([LOGITS], dtype=torch.float64)
    want = np.array(by_hand(LOGITS, sampling.temperature, sampling.top_k, sampling.top_p))
    chosen, logs = pick(logits.expand(draws, -1), sampling, range(draws), 0)
    seen = np.bincount(chosen.numpy(), minlength=len(LOGITS))
    kept = want > 0
    assert seen[~kept].sum() == 0
    statistic = ((seen - draws * want) ** 2)[kept] / (draws * want[kept])
    bound = {2: 27.63, 3: 30.66, 4: 33.38, 5: 35.89}[kept.sum() - 1]  # chi-square, 1 - 1e-6
    assert statistic.sum() < bound
    torch.testing.assert_close(logs, logits[0].log_softmax(0)[chosen])


def test_numbers_of_a_row_are_independent_from_token_to_token():
    """The next is no likelier to be the same: 5 standard deviations, 1 seed in 10^6."""
    even = torch.zeros(5_000, 2, dtype=torch.float64)
    first, second = (pick(even, Sampling(), range(5_000), number)[0] for number in (0, 1))
    assert abs(int((first == second).sum()) - 2_500) < 5 * math.sqrt(1_250)


def test_logits_that_differ_by_rounding_are_tied_and_the_lowest_token_wins():
    rows = [[0, 7, 7 + 1e-12], [0, 7, 7 + 1e-6], [1e6, 1e6 + 1e-5, 0]]
    chosen, _ = pick(torch.tensor(rows, dtype=torch.float64), GREEDY, range(3), 0)
    assert chosen.tolist() == [1, 2, 0]


def test_an_answer_ends_before_the_stop_and_the_others_go_on():
    model = build("positions=learned", "window=none")
    whole = generate(model, PROMPTS, tokens=20, sampling=GREEDY)
    for stop in range(VOCABULARY):
        want = [answer[: answer.index(stop)] if stop in answer else answer for answer in whole]
        options = {"sampling": GREEDY, "stop": stop, "use_cache": stop % 3 > 0}
        assert generate(model, PROMPTS, tokens=20, **options) == want


def test_no_step_is_taken_after_the_last_row_has_ended():
    model = build("positions=rotary")
    whole = generate(model, PROMPTS[:1], tokens=8, sampling=GREEDY)[0]
    taken = list(steps(model, PROMPTS[:1], tokens=8, sampling=GREEDY, stop=whole[0]))
    assert [[picked.token for picked in step] for step in taken] == [[whole[0]]]


def test_tokens_stream_in_the_order_they_are_made():
    model, streamed = build("positions=rotary"), []
    answers = generate(model, PROMPTS[:3], tokens=5, on_token=lambda *pair: streamed.append(pair))
    assert streamed == [(row, answers[row][n]) for n in range(5) for row in range(3)]


def test_steps_tell_the_log_probability_before_temperature_and_filters():
    model, sampling = (
        build("positions=rotary", dtype=torch.float64),
        Sampling(temperature=2, top_k=3),
    )
    text = list(PROMPTS[0])
    for ((row, token, log),) in steps(model, [text], tokens=6, sampling=sampling):
        want = model(torch.tensor([text]))[0, -1].log_softmax(0)[token]
        assert row == 0 and log == pytest.approx(want.item(), abs=1e-12)
        text.append(token)
    assert len(text) == len(PROMPTS[0]) + 6


class Enough(Exception):
    pass


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_is_left_as_it_was(sampling, dtype):
    model = config.override(SMALL, ["dropout=0.9"]).build().to(dtype).train()
    model.blocks[0].eval()  # a part that somebody froze
    modes = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def tired(row, token):
        raise Enough

    first, again = (generate(model, PROMPTS, tokens=4, sampling=sampling) for _ in range(2))
    assert first == again  # so dropout was off
    with pytest.raises(Enough) as kept:  # and with it the frames, so nothing is tidied up by chance
        generate(model, PROMPTS, tokens=4, sampling=sampling, on_token=tired)
    assert kept.tb is not None
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.dtype == dtype for parameter in model.parameters())


def test_the_caller_of_steps_keeps_gradients():
    model = build("positions=rotary", dtype=torch.float64)
    for _ in steps(model, PROMPTS, tokens=2):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 12])
def test_what_is_read_fits_and_moves_on_in_halves(longest):
    assert [first_seen(n, None) for n in (1, 50)] == [0, 0]
    half = max(longest // 2, 1)
    for length in range(1, 60):
        first = first_seen(length, longest)
        allowed = [s for s in range(0, length, half) if length - s <= longest]
        assert first == allowed[0]


def test_caches_are_made_once_for_all_tokens_that_will_come(monkeypatch):
    made, grow = [], FullCache._grow

    def count(cache, capacity, *given):
        made.append(capacity)
        grow(cache, capacity, *given)

    monkeypatch.setattr(FullCache, "_grow", count)
    model = build("positions=none", "window=none")
    generate(model, [prompt(5), prompt(9)], tokens=40)
    assert made == [49, 49]  # a buffer for each layer
    made.clear()
    generate(model, [prompt(5)], tokens=4)
    assert made == [16, 16]
    monkeypatch.setattr(caches, "MOST_EXPECTED", 20)
    made.clear()
    generate(model, [prompt(5)], tokens=40)
    assert made == [20, 20, 40, 40, 80, 80]


def test_a_step_reads_one_token_of_each_row():
    model, sizes = build("positions=learned", "window=none", dtype=torch.float64), []
    handle = model.register_forward_pre_hook(lambda _, inputs: sizes.append([*inputs[0].shape]))
    generate(model, [prompt(5), prompt(3)], tokens=12)
    handle.remove()
    # 5 + 8 tokens are over the limit of 12: read anew, from 6 on; then the other one from 6 on
    assert sizes == [[2, 5], *[[2, 1]] * 7, [2, 11], [2, 1], [2, 9], [2, 1]]


def test_a_model_that_has_diverged_says_so():
    model = config.override(SMALL, []).build()
    torch.nn.init.constant_(model.head.weight, math.nan)
    for sampling in (GREEDY, Sampling(), Sampling(top_p=0.5, top_k=3)):
        with pytest.raises(ValueError, match="logits of row 0 after 4 tokens are not finite"):
            generate(model, [[1, 2, 3, 4]], tokens=3, sampling=sampling)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; logits are divided by it"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; it counts tokens"),
        ({"top_p": 0.0}, "top_p is 0.0; it is a probability"),
        ({"top_p": 1.1}, "top_p is 1.1"),
    ],
)
def test_nonsense_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompts": [[1], []]}, "prompt 1 is empty; give at least one token"),
        ({"prompts": [[1], [2, 13]]}, "prompt 1 has token 13; the model knows 0 to 12"),
        ({"prompts": [[-1]]}, "prompt 0 has token -1"),
        ({"tokens": 0}, "tokens is 0; ask for 1 or more"),
        ({"stop": 13}, "stop is 13; it is a token: use 0 to 12"),
    ],
)
def test_nonsense_requests_are_refused(wrong, message):
    model, request = build("positions=rotary"), {"prompts": [[1]], "tokens": 3, **wrong}
    with pytest.raises(ValueError, match=message):
        generate(model, **request)
    with pytest.raises(ValueError, match=message):
        steps(model, **request)  # at once, not when the first step is taken


def test_no_prompts_have_no_answers():
    assert generate(build("positions=rotary"), [], tokens=3) == []
