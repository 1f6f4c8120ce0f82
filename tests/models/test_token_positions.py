"""Where tokens stand: positions on axes (M-RoPE), in whole texts and through a cache."""

import pytest
import torch

from attnlab import config
from attnlab.attention.heads import AttentionOptions
from attnlab.generate import Sampling, generate
from attnlab.kernels import Rotation
from attnlab.models import decoding
from attnlab.models.transformer import TransformerSettings

SMALL = TransformerSettings(vocabulary=13, context=48, width=48, depth=2)  # 6 pairs a head
SECTIONS = "positions.sections=2,2,2"
WORDS = [
    [],
    ["window=5", "positions.layout=interleaved"],
    ["positions.base=10000,none,100", "depth=3", "positions.temperature=0.1", "sink=learned"],
    ["positions.alternate=true", "positions.scaling=linear", "norm_heads=true"],
    ["attention=gated-delta", "attention.full_every=2", "attention.full=grouped"],
    ["attention=latent", "attention.rotary_width=12"],
]
AT = torch.arange


def build(*words):
    torch.manual_seed(0)
    model = config.override(SMALL, words).build().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def text(batch=2, length=21, seed=0):
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(seed))


def picture(start, rows, columns):
    """Axes of the tokens of a picture: one frame, row by row."""
    row, column = (one.flatten() for one in torch.meshgrid(AT(rows), AT(columns), indexing="ij"))
    return torch.stack((torch.zeros_like(row), row, column)) + start


def words_at(start, count):
    return (AT(count) + start).expand(3, -1)


# 4 words, a picture of 2 · 5 tokens, 7 words; 9 words, a picture of 3 · 3, 3 words
AXES = torch.stack(
    (
        torch.cat((words_at(0, 4), picture(4, 2, 5), words_at(9, 7)), 1),
        torch.cat((words_at(0, 9), picture(9, 3, 3), words_at(12, 3)), 1),
    )
)


@pytest.mark.parametrize("words", WORDS, ids=str)
@torch.no_grad()
def test_plain_text_is_read_as_without_sections(words):
    """To the last bit, as a whole and in pieces."""
    usual = build(*[word for word in words if "alternate" not in word])
    sections, tokens = build(*words, SECTIONS), text()
    assert torch.equal(usual(tokens), sections(tokens))
    caches = usual.new_cache(), sections.new_cache()
    for piece in tokens.split([9, 1, 11], 1):
        found = [
            one(piece, cache=held) for one, held in zip((usual, sections), caches, strict=True)
        ]
        assert torch.equal(*found)
    same = AT(21).expand(1, 3, -1)
    torch.testing.assert_close(sections(tokens, axes=same), usual(tokens), atol=0, rtol=0)


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("sizes", [[1] * 21, [6, 1, 3, 11], [21]], ids=str)
@torch.no_grad()
def test_decoding_in_pieces_is_the_whole_text_also_where_positions_jump(words, sizes):
    model, tokens = build(*words, SECTIONS), text()
    whole, cache = model(tokens, axes=AXES), model.new_cache()
    assert not torch.equal(whole, model(tokens))
    pieces = zip(tokens.split(sizes, 1), AXES.split(sizes, 2), strict=True)
    got = [model(piece, axes=at, cache=cache) for piece, at in pieces]
    torch.testing.assert_close(torch.cat(got, 1), whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("words", WORDS, ids=str)
@torch.no_grad()
def test_text_after_a_picture_goes_on_behind_its_largest_position(words):
    """Without axes, each row from its own: the picture of 2 · 5 ends at 8, that of 3 · 3 at 11."""
    model, tokens = build(*words, SECTIONS), text()
    axes = AXES.clone()
    axes[0, :, 18:], cache = words_at(13, 3), model.new_cache()
    whole = model(tokens, axes=axes)
    got = [model(tokens[:, :18], axes=AXES[..., :18], cache=cache)]
    assert cache.next.tolist() == [13, 12]
    got += [model(piece, cache=cache) for piece in tokens[:, 18:].split(1, 1)]
    assert cache.next.tolist() == [16, 15]
    torch.testing.assert_close(torch.cat(got, 1), whole, atol=1e-9, rtol=0)
    cache.reset()
    model(tokens, cache=cache)
    assert cache.next is None, "plain text counts tokens"


@torch.no_grad()
def test_a_row_padded_on_the_left_is_read_as_if_alone():
    model, tokens = build(SECTIONS, "window=9"), text()
    padded = torch.cat((torch.zeros(2, 6, dtype=torch.long), tokens), 1)
    hidden = AT(27)[None] < torch.tensor([[6], [6]])
    axes = torch.cat((torch.full((2, 3, 6), 77), AXES), 2)  # of padding: anything
    cache, last = model.new_cache(), {"key_padding": torch.zeros(2, 3, dtype=torch.bool)}
    got = [model(padded[:, :24], axes=axes[..., :24], key_padding=hidden[:, :24], cache=cache)]
    got += [model(padded[:, 24:], cache=cache, **last)]
    want = AXES.clone()
    want[..., 18:] = torch.stack((words_at(13, 3), words_at(12, 3)))
    torch.testing.assert_close(
        torch.cat(got, 1)[:, 6:], model(tokens, axes=want), atol=1e-9, rtol=0
    )


@torch.no_grad()
def test_text_that_was_counted_is_text_whose_positions_were_said():
    """Before a picture that lies at smaller positions than the text that was read."""
    model, tokens, found = build(SECTIONS), text(1), []
    for said in ({}, {"axes": words_at(0, 6)[None]}, {"positions": AT(6)[None]}):
        cache = model.new_cache()
        model(tokens[:, :6], cache=cache, **said)
        model(tokens[:, 6:8], cache=cache, axes=words_at(2, 2)[None])
        assert cache.next.tolist() == [6]
        found.append(model(tokens[:, 8:], cache=cache))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@torch.no_grad()
def test_a_row_without_a_picture_goes_on_behind_its_text():
    """Padded where another row has a picture; the rows before were as long, or padded too."""
    model, tokens = build(SECTIONS), text()
    for pad in (0, 2):
        cache, hidden = model.new_cache(), AT(6)[None] < torch.tensor([[0], [pad]])
        counted = {"positions": AT(6)[None] - torch.tensor([[0], [pad]]), "key_padding": hidden}
        model(tokens[:, :6], cache=cache, **(counted if pad else {}))
        padding = torch.tensor([[False] * 3, [True] * 3])
        model(tokens[:, 6:9], cache=cache, axes=picture(6, 1, 3)[None], key_padding=padding)
        assert cache.next.tolist() == [9, 6 - pad]
        got = model(tokens[:, 9:12], cache=cache)[1]
        alone = model(torch.cat((tokens[1:, pad:6], tokens[1:, 9:12]), 1))[0, -3:]
        torch.testing.assert_close(got, alone, atol=1e-9, rtol=0)


@torch.no_grad()
def test_each_section_turns_by_its_axis():
    """Against a rotation of each axis alone, of which a section is cut out."""
    model, tokens, given = build(SECTIONS, "positions.sections=1,2,3"), text(), []
    model.blocks[0].attention.register_forward_pre_hook(
        lambda _, x, named: given.append(named["options"]), with_kwargs=True
    )
    model(tokens, axes=AXES)
    every = [model.positions.rotation(AXES[:, axis], torch.float64) for axis in range(3)]
    wanted = [
        torch.cat((getattr(every[0], one)[..., :1], getattr(every[1], one)[..., 1:3],
                   getattr(every[2], one)[..., 3:]), -1)
        for one in ("cos", "sin")
    ]  # fmt: skip
    assert isinstance(given[0], AttentionOptions) and isinstance(given[0].rotary, Rotation)
    assert torch.equal(given[0].rotary.cos, wanted[0])
    assert torch.equal(given[0].rotary.sin, wanted[1])


@pytest.mark.parametrize("axis", [0, 1, 2])
@torch.no_grad()
def test_only_distances_on_an_axis_count(axis):
    model, tokens, moved = build(SECTIONS), text(), AXES.clone()
    moved[:, axis] += 7
    torch.testing.assert_close(
        model(tokens, axes=moved), model(tokens, axes=AXES), atol=1e-9, rtol=0
    )
    moved[:, axis, 5:] += 1
    assert (model(tokens, axes=moved) - model(tokens, axes=AXES)).abs().max() > 1e-6


@torch.no_grad()
def test_documents_in_a_row_keep_the_axes_they_are_given():
    model, tokens = build(SECTIONS), text(1)
    segments = (AT(21) >= 8).long()[None]
    found = model(tokens, axes=AXES[:1], segments=segments)
    for part in (slice(0, 8), slice(8, 21)):
        alone = model(tokens[:, part], axes=AXES[:1, :, part])
        torch.testing.assert_close(found[:, part], alone, atol=1e-9, rtol=0)


def test_a_text_is_continued_as_without_sections():
    greedy, prompts = Sampling(temperature=0), [[1, 2, 3, 4], [5]]
    usual, sections = build(), build(SECTIONS)
    found = [generate(one, prompts, tokens=9, sampling=greedy) for one in (usual, sections)]
    assert found[0] == found[1]


@torch.no_grad()
def test_a_step_in_c_reads_no_cache_of_positions_on_axes():
    model = build(SECTIONS)
    cache = model.new_cache()
    model(text(), axes=AXES, cache=cache)
    assert decoding.why_not(model, cache) == "positions on axes were read"


@pytest.mark.parametrize(
    ("words", "axes", "message"),
    [
        ([], AXES, "this model has none; set model.positions=rotary and model.positions.sections"),
        (["positions=alibi"], AXES, "this model has none; set model.positions=rotary"),
        ([SECTIONS], AXES[:, :2], r"axes have shape \[2, 2, 21\]; .* it is \[1 or 2, 3 axes, 21"),
        ([SECTIONS], AXES[..., :20], r"axes have shape \[2, 3, 20\]"),
        ([SECTIONS], AXES[0], r"axes have shape \[3, 21\]"),
        ([SECTIONS], AXES.double(), "axes are torch.float64 .* they are whole numbers"),
    ],
)
def test_axes_that_do_not_fit_are_refused(words, axes, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        build(*words)(text(), axes=axes)
