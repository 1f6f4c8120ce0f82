"""Own attention is the attention it says it is: in training, beside padding, and when decoding."""

import pytest
import torch

from attnlab import config
from attnlab.attention.own import OwnLayer
from attnlab.attention.text_cache import TextCache
from attnlab.code import consent
from attnlab.code.own import allow_named
from attnlab.generate import Sampling, generate
from attnlab.models.transformer import TransformerSettings

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

def attend(q, k, v, power=1.0):
    t = q.shape[2]
    scores = power * q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

def biased(q, k, v, bias, window, causal):
    assert causal
    t = q.shape[2]
    scores = q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
    away = torch.arange(t)[:, None] - torch.arange(t)
    hidden = (away < 0) | (away >= (window or t))
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

class Score(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(head_dim))
    def forward(self, query, key, value):
        return attend(query * self.gain, key, value)

class Near(Score):
    def __init__(self, head_dim, window):
        super().__init__(head_dim)
        self.window = window
    def forward(self, query, key, value):
        return biased(query * self.gain, key, value, None, self.window, True)

class Plain(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        return self.merge(attend(q, k, v).transpose(1, 2).flatten(2)), "weights"

class Turned(Plain):
    def forward(self, x, rotary):
        from attnlab.kernels import rotate
        q, k, v = self.project(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        y = attend(rotate(q, rotary), rotate(k, rotary), v)
        return self.merge(y.transpose(1, 2).flatten(2))

from attnlab.attention.heads import HeadedAttention, Layer, MultiHead
from attnlab.attention.scores import ScaledDotScore

class Ours(HeadedAttention):
    def __init__(self, width, heads, window=None):
        layer = Layer(width=width, window=window)
        super().__init__(MultiHead(heads=heads), ScaledDotScore(), layer)

class Table(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)
    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]))

class Added(Table):
    def forward(self, x, positions):
        return x + self.table(positions)

class Fast(Plain):
    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(y.transpose(1, 2).flatten(2))

from attnlab.attention.cache import LayerCache

class Sum(LayerCache):
    def reset(self):
        self.total = None
    bytes = property(lambda self: self.total.numel() * self.total.element_size())
    def check(self, batch):
        assert self.total is None or len(self.total) == batch

class Recurrent(nn.Module):
    def new_cache(self):
        return Sum()
    def forward(self, x, *, options, cache=None):
        y = x.cumsum(1)
        if cache is not None:
            y = y if cache.total is None else y + cache.total
            cache.total = y[:, -1:]
        return y

class OfX(nn.Module):
    def forward(self, x):
        return x

class Wrong(Plain):
    def forward(self, x):
        return x[:, :-1]
"""
SIZES = ["width=24", "attention.heads=3", "depth=2", "context=64", "vocabulary=29"]
# own code, and ours that computes the same
TWINS = {
    "a function of q, k and v": (["attention=mine.py:attend"], []),
    "a class of q, k and v": (["attention=mine.py:Score"], []),
    "a score": (["score=mine.py:attend"], []),
    "a score of grouped heads": (
        ["attention=grouped", "attention.kv_heads=1", "score=mine.py:attend"],
        ["attention=grouped", "attention.kv_heads=1"],
    ),
    "a score with a window": (["score=mine.py:biased", "window=5"], ["window=5"]),
    "a score with a bias": (
        ["score=mine.py:biased", "positions=alibi"],
        ["positions=alibi"],
    ),
    "a score with a learned bias": (
        ["score=mine.py:biased", "positions=kerple"],
        ["positions=kerple"],
    ),
    "a class that asks for its window": (["attention=mine.py:Near", "window=5"], ["window=5"]),
    "a score with a gate": (["score=mine.py:attend", "gate=headwise"], ["gate=headwise"]),
    "x to y": (["attention=mine.py:Plain", "positions=none"], ["positions=none"]),
    "x to y, rotated": (["attention=mine.py:Turned"], []),
    "the interface of ours": (["attention=mine.py:Ours", "window=5"], ["window=5"]),
    "positions of x": (["positions=mine.py:Table"], ["positions=learned"]),
    "positions": (["positions=mine.py:Added"], ["positions=learned"]),
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def build(words):
    torch.manual_seed(3)
    words = [*SIZES, *words] if "attention=grouped" not in words else [*words, *SIZES]
    settings = config.override(TransformerSettings(), words)
    allow_named(settings, words)
    return settings.build().double().eval()


@pytest.fixture(params=TWINS, ids=str)
def twins(request, mine):
    """Two models with the same weights."""
    own, ours = map(build, TWINS[request.param])
    weights = dict(ours.named_parameters())
    with torch.no_grad():
        for name, weight in own.named_parameters():
            if name.endswith("gain"):
                continue
            other = name.replace(".inner", "")
            weight.copy_(weights.pop(other))
    assert not weights
    return own, ours


TOKENS = torch.randint(0, 29, (3, 17), generator=torch.Generator().manual_seed(5))


def test_it_computes_what_ours_computes_forward_and_back(twins):
    losses = [model(TOKENS).square().sum() for model in twins]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    gradients = [model.embed.weight.grad for model in twins]
    torch.testing.assert_close(*gradients)


def test_padding_is_not_read(twins):
    padding = torch.zeros(3, 17, dtype=torch.bool)
    padding[0, :4], padding[2, :9] = True, True
    positions = ((~padding).cumsum(1) - 1).clamp(min=0)
    own, ours = (
        model(TOKENS, positions=positions, key_padding=padding)[~padding] for model in twins
    )
    torch.testing.assert_close(own, ours)


@pytest.mark.parametrize("pieces", [(1,) * 17, (5, 1, 11), (16, 1)])
def test_decoding_in_pieces_gives_what_the_whole_text_gives(twins, pieces):
    own, _ = twins
    cache = own.new_cache()
    with torch.no_grad():
        parts = [own(part, cache=cache) for part in TOKENS.split(pieces, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), own(TOKENS))
    assert cache.bytes > 0
    cache.reset()
    with torch.no_grad():
        torch.testing.assert_close(own(TOKENS, cache=cache), own(TOKENS))


def test_texts_of_several_lengths_are_continued_as_alone(twins):
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
    sampling = Sampling(temperature=0)
    both = [list(generate(model, prompts, tokens=6, sampling=sampling)) for model in twins]
    assert both[0] == both[1]


def test_operations_are_about_those_of_ours(twins):
    own, ours = twins
    assert 0.8 * ours.operations(64) <= own.operations(64) <= 2.2 * ours.operations(64)


def test_operations_of_the_attention_of_pytorch_are_counted(mine):
    words = (
        ["attention=mine.py:Plain", "positions=none"],
        ["attention=mine.py:Fast", "positions=none"],
    )
    plain, fast = map(build, words)
    assert fast.operations(64) == plain.operations(64) > 0


def test_a_cache_of_its_own_is_used(mine):
    model = build(["attention=mine.py:Recurrent", "positions=none"])
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(part, cache=cache) for part in TOKENS.split((5, 1, 11), 1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(TOKENS))
    assert cache.bytes == 2 * 3 * 24 * 8, "a sum of 24 numbers in each of 2 layers and 3 texts"


def test_their_own_initial_weights_stay(mine, tmp_path):
    begun = "self.merge = nn.Linear(width, width, bias=False)"
    filled = f"{begun}\n        nn.init.constant_(self.merge.weight, 0.125)"
    (tmp_path / "mine.py").write_text(CODE.replace(begun, filled))
    model = build(["attention=mine.py:Plain", "positions=none"])
    assert (model.blocks[0].attention.inner.inner.merge.weight == 0.125).all()
    assert isinstance(model.blocks[0].attention, OwnLayer)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["attention=mine.py:Plain"],
            "takes no 'rotary', so the model's positions would not reach",
        ),
        (["attention=mine.py:Plain", "positions=alibi"], "takes no 'bias'"),
        (["score=mine.py:attend", "positions=alibi"], "takes no 'bias'"),
        (["attention=mine.py:Plain", "window=3"], "takes no 'window'"),
        (["score=mine.py:attend", "window=3"], "takes no 'window'"),
        (["score=mine.py:attend", "sink=fixed"], "takes no 'sink'"),
        (
            ["score=mine.py:attend", "positions.base=10,none", "positions.temperature=0.1"],
            "is not given model.positions.temperature",
        ),
        (
            ["score=mine.py:attend", "attention_dropout=0.1"],
            "takes no 'dropout', so model.attention_",
        ),
        (["attention=mine.py:attend", "attention_dropout=0.1"], "takes no 'dropout'"),
        (["attention=mine.py:Ours", "attention_dropout=0.1"], "takes no 'dropout'"),
        (["attention=mine.py:Recurrent", "window=3"], "takes no 'window'"),
        (["score=mine.py:attend", "sink=learned"], "takes no 'sink'"),
        (["attention=mine.py:Ours", "gate=headwise"], "stands in place of our projections"),
        (
            ["score=mine.py:attend", "value_residual=first"],
            "nothing of the tokens or of other layers",
        ),
        (["attention=mine.py:Ours", "value_residual=first"], "model.value_residual=first would"),
        (["attention=mine.py:attend", "score=additive"], "stands for the score too"),
        (["score=mine.py:OfX"], "no function of q, k and v"),
        (
            ["attention=mine.py:Wrong", "positions=none"],
            "gives [3, 16, 24], and must give [3, 17, 24] (mine.py, line 100)",
        ),
    ],
)
def test_what_would_not_reach_it_is_refused(mine, words, message):
    with pytest.raises(ValueError, match=r"(?s).") as refused:
        build(words).train()(TOKENS)
    assert message in str(refused.value)


def test_a_bias_by_position_fits_the_tokens_of_one_call(mine):
    own = build(["score=mine.py:biased", "positions=fire"])
    ours = build(["positions=fire"])
    ours.load_state_dict({name.replace("inner.", ""): w for name, w in own.state_dict().items()})
    torch.testing.assert_close(own(TOKENS), ours(TOKENS))
    with pytest.raises(ValueError, match="for the tokens of one call without padding"):
        own(TOKENS, cache=own.new_cache())
    with pytest.raises(ValueError, match="for the tokens of one call without padding"):
        own(TOKENS, key_padding=torch.zeros(3, 17, dtype=torch.bool))


def test_a_cache_of_other_texts_is_refused():
    cache = TextCache()
    from attnlab.attention.heads import AttentionOptions

    cache.extend(torch.zeros(2, 3, 4), AttentionOptions())
    with pytest.raises(ValueError, match="holds 2 texts, and these are tokens of 3"):
        cache.check(3)


@pytest.mark.parametrize("made", ["float64 on cpu", "complex64 on cpu", "float32 on meta"])
@pytest.mark.parametrize("part", ["score", "attention"])
def test_numbers_of_another_type_or_device_are_refused(mine, part, made):
    dtype, _, device = made.split()
    given = "q, k, v" if part == "score" else "x"
    text = f"\n\ndef other({given}):\n    return {given[-1]}.to('{device}', torch.{dtype})\n"
    mine.write_text(mine.read_text() + text)
    where = rf" \(mine\.py, line {len(mine.read_text().splitlines()) - 1}\)"
    with pytest.raises(ValueError, match=f"gives {made}, and must give float32 on cpu{where}"):
        build([f"{part}=mine.py:other", "positions=none"]).float()(TOKENS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_under_autocast_both_of_its_types_are_right(mine, dtype):
    text = f"\n\ndef other(q, k, v):\n    return attend(q, k, v).to(torch.{dtype})\n"
    mine.write_text(mine.read_text() + text)
    with torch.autocast("cpu", torch.bfloat16):
        out = build(["score=mine.py:other", "positions=none"]).float()(TOKENS)
    assert out.isfinite().all()


def test_on_the_meta_device_it_is_counted_without_its_weights(mine):
    with torch.device("meta"):
        assert build(["attention=mine.py:Plain", "positions=none"])(TOKENS.to("meta")).is_meta
