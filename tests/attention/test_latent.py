"""Latent attention: two forms of one function, what its cache keeps, and DeepSeek's numbers."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import Full, Ring
from attnlab.attention.heads import AttentionOptions, Layer
from attnlab.attention.latent import Latent
from attnlab.kernels import LinearBias, dispatch, rotation
from attnlab.kernels.dispatch import Choice

WIDTH = 20
SETTINGS = {
    "as it is": Latent(heads=3, head_width=4, kv_rank=7, rotary_width=6),
    "other widths": Latent(
        heads=2, head_width=5, kv_rank=3, q_rank=4, rotary_width=3, value_width=9
    ),
}
CHANGES = {
    "nothing": {},
    "window": {"window": 4},
    "chunk": {"chunk": 5},
    "soft cap and sink": {"soft_cap": 0.7, "sink": "learned"},
}


def build(settings, **layer):
    torch.manual_seed(0)
    module = settings.build(Layer(width=WIDTH, context=64, **layer)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def drawn(batch, time):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(batch, time, WIDTH, generator=rng, dtype=torch.float64)


def positions_of(name, module, time, padding=None):
    if name == "alibi":
        return {"bias": LinearBias(torch.linspace(0.1, 0.4, module.heads).double())}
    layout = {"interleaved": "interleaved", "half-split": "half-split"}[name]
    at = torch.arange(time)[None]
    if padding is not None:
        at = (at - padding.sum(1, keepdim=True)).clamp(min=0)
    pairs = module.rotary_width // 2
    return {"rotary": rotation(at, pairs, layout=layout, dtype=torch.float64)}


@pytest.mark.parametrize("positions", ["half-split", "interleaved", "alibi"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_absorbed_form_is_the_plain_one_forward_and_backward(name, change, padded, positions):
    module, x = build(SETTINGS[name], **CHANGES[change]), drawn(2, 13)
    padding = torch.arange(13)[None] < torch.tensor([[4], [0]]) if padded else None
    given = positions_of(positions, module, 13, padding)
    options = AttentionOptions(key_padding=padding, **given)
    found = []
    for form in ("plain", "absorbed"):
        q, held = module.queries(x, options), module.latents(x, options)
        out = module.score.attend(getattr(module, form)(q, held, options))
        out = out if form == "plain" else module.values_of(out)
        towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        within = [p for n, p in module.named_parameters() if not n.startswith("merge")]
        found.append([out, *torch.autograd.grad((out * towards).sum(), within)])
    for plain, absorbed in zip(*found, strict=True):
        torch.testing.assert_close(absorbed, plain, rtol=1e-9, atol=1e-10)  # float64: rounding


@pytest.mark.parametrize("absorbs", [True, False])
@pytest.mark.parametrize("kind", ["full", "ring"])
@pytest.mark.parametrize("sizes", [[1], [3, 1, 7], [2, 9]], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_either_form_decodes_what_the_whole_text_gives(name, sizes, kind, absorbs, monkeypatch):
    """With padding on the left; in the model it is the form of fewer operations."""
    module, x = build(SETTINGS[name], window=4 if kind == "ring" else None), drawn(2, 23)
    monkeypatch.setattr(module, "absorbs", lambda queries, keys: absorbs)
    padding = torch.arange(23)[None] < torch.tensor([[5], [0]])
    turned = positions_of("half-split", module, 23, padding)["rotary"]
    whole = module(x, rotary=turned, key_padding=padding)
    cache, parts, start = {"full": Full, "ring": Ring}[kind]().build(module.window), [], 0
    while start < 23:
        piece = slice(start, min(start + sizes[len(parts) % len(sizes)], 23))
        by = type(turned)(turned.cos[:, :, piece], turned.sin[:, :, piece], turned.layout)
        part = x[:, piece]
        parts.append(module(part, rotary=by, key_padding=padding[:, piece], cache=cache))
        start = piece.stop
    got, there = torch.cat(parts, 1), ~padding
    torch.testing.assert_close(got[there], whole[there], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_cache_keeps_the_latent_vector_and_one_rotary_key_of_a_token(name):
    settings = SETTINGS[name]
    module, cache = build(settings), Full().build(None)
    with torch.no_grad():
        module(drawn(2, 32), cache=cache)
    assert cache.bytes == 2 * 32 * (settings.kv_rank + settings.rotary_width) * 8


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 40), (2, 5), (8, 40), (40, 40)])
@torch.no_grad()
def test_decoding_takes_the_form_of_fewer_operations(name, queries, keys, monkeypatch):
    """As torch counts them, of all pairs."""
    monkeypatch.setattr(dispatch, "choose", lambda request, path: Choice("reference", "a test"))
    module, options = build(SETTINGS[name]), AttentionOptions()
    q, held = module.queries(drawn(1, queries), options), module.latents(drawn(1, keys), options)
    counts = []
    for form in (module.plain, lambda *given: module.absorbed(*given)):
        with FlopCounterMode(display=False) as counter:
            out = module.score.attend(form(q, held, options))
            if form != module.plain:
                module.values_of(out)
        counts.append(counter.get_total_flops())
    assert module.absorbs(queries, keys) == (counts[1] < counts[0])


def test_one_token_after_many_is_decoded_in_the_absorbed_form_and_a_prompt_in_the_plain():
    """At the sizes of DeepSeek-V2: 128 heads of 128, ranks 512 and 1536, a rotary part of 64."""
    with torch.device("meta"):
        sizes = Latent(
            heads=128, head_width=128, kv_rank=512, q_rank=1536, rotary_width=64, value_width=128
        )
        module = sizes.build(Layer(width=5120, context=4096))
    assert module.absorbs(1, 2) and module.absorbs(1, 4096) and module.absorbs(8, 4096)
    assert not module.absorbs(4096, 4096)


def test_normed_heads_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"with nothing between, .* write model.norm_heads=false"):
        build(SETTINGS["as it is"], norm_heads=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("value_residual", "first"), ("value_embedding", True), ("shared_kv", 0)],
)
def test_other_keys_and_values_are_refused_with_the_reason(option, value):
    with pytest.raises(
        ValueError, match=rf"of the vectors that its cache keeps.* model\.{option}="
    ):
        build(SETTINGS["as it is"], **{option: value})


def theirs_of(module, version):
    """The attention of transformers, with the weights of ours."""
    import transformers.models.deepseek_v2.modeling_deepseek_v2 as v2
    import transformers.models.deepseek_v3.modeling_deepseek_v3 as v3
    from transformers import DeepseekV2Config, DeepseekV3Config

    config = {2: DeepseekV2Config, 3: DeepseekV3Config}[version](
        hidden_size=WIDTH,
        num_attention_heads=module.heads,
        num_key_value_heads=module.heads,
        kv_lora_rank=module.rank,
        q_lora_rank=None if module.compress_query is None else module.query.in_features,
        qk_rope_head_dim=module.rotary_width,
        qk_nope_head_dim=module.plain_width,
        v_head_dim=module.value_width,
        attn_implementation="sdpa",  # "eager" takes its softmax in float32
    )
    made = {2: v2.DeepseekV2Attention, 3: v3.DeepseekV3Attention}[version](config, 0).double()
    pairs = {"kv_a_proj_with_mqa": "compress", "kv_b_proj": "expand", "o_proj": "merge"}
    pairs |= {"kv_a_layernorm": "norm"}
    if module.compress_query is None:
        pairs |= {"q_proj": "query"}
    else:
        pairs |= {"q_a_proj": "compress_query", "q_a_layernorm": "query_norm", "q_b_proj": "query"}
    weights = {f"{one}.weight": getattr(module, ours).weight for one, ours in pairs.items()}
    made.load_state_dict(weights)
    return made


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("q_rank", [None, 5])
@torch.no_grad()
def test_the_numbers_are_those_of_transformers(version, q_rank, unchecked_shapes):
    settings = Latent(
        heads=4, head_width=5, kv_rank=7, q_rank=q_rank, rotary_width=6, value_width=4
    )
    module, x, time = build(settings), drawn(2, 11), 11
    theirs = theirs_of(module, version)
    for name in ("kv_a_layernorm", "q_a_layernorm"):
        if getattr(theirs, name) is not None:  # theirs compute in float32, by another epsilon
            ours = module.norm if name == "kv_a_layernorm" else module.query_norm
            setattr(theirs, name, ours)
    turned = rotation(torch.arange(time)[None], 3, layout="interleaved", dtype=torch.float64)
    by = torch.complex(turned.cos[:, 0], turned.sin[:, 0])
    if version == 3:
        by = tuple(torch.cat((one[:, 0], one[:, 0]), -1) for one in (turned.cos, turned.sin))
    mask = torch.full((time, time), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    wanted = theirs(x, position_embeddings=by, attention_mask=mask)[0]
    # version 2 rotates in float32, whose rounding is 6e-8
    limit = 1e-12 if version == 3 else 1e-6
    torch.testing.assert_close(module(x, rotary=turned), wanted, rtol=0, atol=limit)
    apart = wanted.abs().max()
    assert apart > 0.1 and (module(x) - wanted).abs().max() > 1e3 * limit, "rotation is seen"
