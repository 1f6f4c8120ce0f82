"""The originals: by whom they were written, how they are made, and what they are declared to do."""

from attnlab.audit.mutants.mutate import ROOT, Original

PLACE = "attnlab.audit.mutants.originals"
CONTROLS = "attnlab.audit.bugs.controls"
CAUSAL = {"causal": True}
SCALE = 8**-0.5  # of heads 8 wide
OWN = (
    *("attnlab.kernels.rotary", "attnlab.kernels", "attnlab.attention.positions"),
    *("attnlab.attention.cache", "attnlab.attention.heads", "attnlab.models.token_positions"),
    *("attnlab.models.transformer", f"{PLACE}.own"),
)


def _by_hand(
    file: str, name: str, make: str, *more: str, calls: tuple[str, ...] = (), **declared: object
) -> Original:
    return Original(
        name=name,
        calls=calls,
        modules=(f"{PLACE}.{file}",),
        scope=(name, *more),
        make=make,
        declared={**CAUSAL, **declared},
    )


def _control(name: str, make: str, **declared: object) -> Original:
    return Original(
        name=name, modules=(CONTROLS,), scope=(name,), make=make, declared={**CAUSAL, **declared}
    )


def _own_model(name: str, text: str, *scope: str, **declared: object) -> Original:
    settings = "vocabulary=61, depth=2, attention_dropout=0.1"
    return Original(
        name=name,
        modules=OWN,
        scope=scope,
        make=f"OwnTransformer(TransformerSettings({settings}, {text}))",
        declared={**CAUSAL, "cache": True, "padding": True, "scale": SCALE, **declared},
    )


HAND_WRITTEN = (
    _by_hand(
        *("plain", "PlainAttention", "PlainAttention(32, 4)"),
        padding=True,
        heads=4,
        positions="none",
        scale=SCALE,
    ),
    _by_hand(
        "plain", "MaskedSdpa", "MaskedSdpa(32, 4)", padding=True, positions="none", scale=SCALE
    ),
    _by_hand(
        *("plain", "PackedAttention", "PackedAttention(32, 4)"),
        calls=("code(draw(1, 9, 0), segment_ids=torch.arange(9)[None] // 4)",),
        positions="none",
        scale=SCALE,
    ),
    _by_hand("plain", "einsum_attention", "einsum_attention", positions="none", scale=SCALE),
    _by_hand(
        *("grouped", "GroupedRotary", "GroupedRotary(64, 8, 2)", "angles", "rotate_half"),
        heads=8,
        kv_heads=2,
        positions="rotary",
        rope_layout="half-split",
        rope_base=10000.0,
        scale=SCALE,
    ),
    _by_hand(
        *("grouped", "PairedRotary", "PairedRotary(48, 6, 3)", "rotate_pairs"),
        heads=6,
        kv_heads=3,
        positions="rotary",
        rope_layout="interleaved",
        rope_base=500.0,
        scale=SCALE,
    ),
    Original(
        name="grouped_attention",
        modules=(f"{PLACE}.grouped",),
        scope=("grouped_attention",),
        make="grouped_attention",
        options={"kv_heads": 2},
        declared={**CAUSAL, "kv_heads": 2, "positions": "none", "scale": SCALE},
    ),
    _by_hand(
        *("grouped", "AlibiAttention", "AlibiAttention(32, 4)"), positions="alibi", scale=SCALE
    ),
    _by_hand(
        *("windows", "WindowAttention", "WindowAttention(32, 4, window=5)"),
        window=5,
        padding=True,
        positions="none",
        scale=SCALE,
    ),
    _by_hand(
        *("windows", "tiled_window_attention", "tiled_window_attention"),
        window=6,
        positions="none",
        scale=SCALE,
    ),
    _by_hand(
        *("decoding", "GrowingCache", "GrowingCache(32, 4)"),
        cache=True,
        positions="rotary",
        rope_base=10000.0,
        scale=SCALE,
    ),
    _by_hand(
        *("decoding", "RoomyCache", "RoomyCache(32, 4)"), cache=True, positions="none", scale=SCALE
    ),
    _by_hand(
        *("decoding", "RingCache", "RingCache(32, 4, window=5)"),
        cache=True,
        window=5,
        positions="none",
        scale=SCALE,
    ),
    _by_hand("blocks", "online_attention", "online_attention", positions="none", scale=SCALE),
    _by_hand("blocks", "LinearAttention", "LinearAttention(32, 4)", cache=True),
    _by_hand(
        *("language", "Language", "Language()", "Block"),
        calls=("code(draw(2, 9, 0), labels=draw(2, 9, 0))",),
        padding=True,
        positions="absolute",
    ),
    _by_hand(
        *("language", "Accumulating", "Accumulating()"),
        calls=("code.loss(draw(4, 9, 0))", "code.accumulate(draw(4, 9, 0), 2)"),
    ),
)
UNUSUAL = (
    _control("SinkAttention", "SinkAttention(32, 4)", positions="none", scale=SCALE),
    _control("capped_attention", "capped_attention", scale=SCALE),
    _control("NormedAttention", "NormedAttention(56, 7, 1)", heads=7, kv_heads=1),
    _control(
        *("BackwardRotary", "BackwardRotary(64, 4)"),
        positions="rotary",
        rope_base=500.0,
        rope_fraction=0.5,
        scale=0.25,
    ),
    _control("StaticCache", "StaticCache(32, 4)", cache=True, positions="none", scale=SCALE),
    _control("QuietPadding", "QuietPadding(32, 4)", padding=True, positions="none", scale=SCALE),
    _control("TokenShift", "TokenShift(24)"),
)
OURS = (
    _own_model(
        *("our transformer, rotary", "width=32, positions=registry.load('positions', 'rotary')()"),
        *("Transformer.forward", "HeadedAttention._read", "HeadedAttention._request_of"),
        *("HeadedAttention._split", "HeadedAttention.join", "frequencies", "rotation_at"),
        *("rotate", "FullCache", "LayerCache._write", "LayerCache._read"),
        *("RotaryPositions.rotation_of_span", "TokenPositions.rotation", "find_positions"),
        positions="rotary",
        rope_base=10000.0,
        rope_layout="half-split",
    ),
    _own_model(
        "our transformer, ALiBi, window",
        "width=48, attention=registry.load('attention', 'multi-head')(heads=6), window=(5,), "
        "positions=registry.load('positions', 'alibi')()",
        *("RingCache", "HeadedAttention._read", "HeadedAttention._request_of", "alibi_slopes"),
        *("Block.forward",),
        window=5,
        positions="alibi",
    ),
    Original(
        name="our reference",
        modules=("attnlab.kernels.reference",),
        scope=("attend_with_weights", "weights_of", "masked_softmax"),
        make="lambda q, k, v: attend(Request(q=q, k=k, v=v, causal=True, window=5))",
        options={"kv_heads": 2},
        declared={**CAUSAL, "window": 5, "kv_heads": 2, "positions": "none", "scale": SCALE},
    ),
)
EXAMPLES = (
    Original(
        name="CausalAttention",
        modules=("examples/causal.py",),
        scope=("CausalAttention",),
        make="CausalAttention(32)",
        declared={**CAUSAL, "positions": "none", "scale": SCALE},
    ),
)


def originals() -> tuple[Original, ...]:
    """All; the examples are beside the package only where it is not installed from elsewhere."""
    there = tuple(one for one in EXAMPLES if (ROOT / one.modules[0]).exists())
    return (*HAND_WRITTEN, *UNUSUAL, *OURS, *there)
