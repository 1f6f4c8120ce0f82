"""How an architecture of `transformers` is made tiny: its configuration, walked by name.

    names in a configuration -> sizes that fit each other -> a model of some ten thousand weights

Two hundred configurations call the same few things by two hundred names. Sizes are chosen so that
whatever is multiplied fits: 4 heads of 8 make a width of 32, mamba's 4 heads of 16 twice that.
Depth is the least that shows every kind of layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab import registry
from attnlab.audit.errors import InputError, calling
from attnlab.audit.signature import signature

WIDTH, HEADS, KV_HEADS, HEAD_WIDTH = 32, 4, 2, 8
WINDOW = 8
TOKENS = 97  # that texts are made of; the special ones lie beyond
SPECIAL = range(TOKENS, TOKENS + 7)
POSITIONS = 512

_NAMES = (
    (
        WIDTH,
        "hidden_size n_embd d_model emb_dim embedding_size embedding_dim word_embed_proj_dim "
        "input_embedding_size output_embedding_size lru_width attention_hidden_size "
        "backbone_hidden_size hidden_size_global input_size pronunciation_embed_dim "
        "shape_embed_dim out_hidden_size projector_output_dim "
        "vision_output_dim projection_dim output_channels",
    ),
    (
        48,
        "intermediate_size n_inner d_inner d_ff dff ffn_dim dim_ff ffn_hidden_size mlp_dim "
        "feed_forward_size moe_intermediate_size shared_expert_intermediate_size "
        "shared_intermediate_size expert_ffn_hidden_size decoder_ffn_dim encoder_ffn_dim "
        "dense_intermediate_size intermediate_size_mlp moe_shared_expert_intermediate_size "
        "moe_shared_intermediate_size prompt_mid_dim projector_input_dim",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads attention_heads "
        "decoder_attention_heads encoder_attention_heads num_decoder_attention_heads "
        "num_encoder_attention_heads linear_num_value_heads linear_num_heads mamba_n_heads "
        "mamba_num_heads swa_num_attention_heads",
    ),
    (
        KV_HEADS,
        "num_key_value_heads num_kv_heads kv_n_heads num_global_key_value_heads "
        "swa_num_key_value_heads linear_num_key_heads n_mamba_heads heads_per_ngram",
    ),
    (
        HEAD_WIDTH,
        "head_dim attention_head_size d_head d_kv dim_head kv_channels v_head_dim global_head_dim "
        "swa_head_dim swa_v_head_dim qk_rope_head_dim qk_nope_head_dim linear_head_dim "
        "linear_key_head_dim linear_value_head_dim index_head_dim hidden_size_per_layer_input "
        "d_rel laurel_rank gated_norm_rank adapter_rank relative_attention_num_buckets",
    ),
    (
        16,
        # so many index heads that no key has 0 from all of them: ties could go either way
        "index_n_heads kv_lora_rank q_lora_rank o_lora_rank mamba_d_head mamba_head_dim "
        "mamba_d_state ssm_state_size state_size router_hidden_size hc_lowrank ple_embed_dim "
        "time_step_rank dim_model_base ext_pw_out_channel depthwise_separable_out_channel "
        "nemo_conv_channels num_mel_bins position_bias_num_buckets prompt_length",
    ),
    (64, "mamba_d_ssm chunk_size mamba_chunk_size lsh_attn_chunk_length local_attn_chunk_length"),
    (
        4,
        "num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num rotary_dim "
        "index_block_size block_size num_position_embeddings prompt_types segment_types",
    ),
    (
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k attn_layer_period "
        "expert_layer_period full_attention_interval sliding_window_pattern layer_group_size "
        "no_rope_layer_interval global_attn_every_n_layers o_groups hc_mult hc_count n_groups "
        "index_topk_blocks hc_sinkhorn_iters altup_num_inputs H_cycles L_cycles n_group "
        "num_expert_group",
    ),
    (
        1,
        "topk_group n_shared_experts num_shared_experts moe_num_shared_experts num_dense_layers "
        "first_k_dense_replace attn_layer_offset expert_layer_offset moe_layer_start_index "
        "num_kv_shared_layers mamba_n_groups mamba_ngroups num_codebooks max_window_layers depth "
        "prefix_dense_sliding_window_pattern num_global_layers",
    ),
    (
        WINDOW,
        "sliding_window sliding_window_size attention_window attention_window_size window_size "
        "local_attention "
        "attention_chunk_size keep_window_size index_topk",
    ),
    (
        SPECIAL[-1] + 1,
        "vocab_size vocab_size_per_layer_input decoder_vocab_size pronunciation_vocab_size "
        "shape_vocab_size ngram_vocab_size_base encoder_hash_byte_group_vocab",
    ),
    (
        POSITIONS,
        "max_position_embeddings n_positions max_seq_len n_ctx context_length "
        "max_target_positions original_max_position_embeddings model_max_length",
    ),
    (32, "image_size crop_size max_source_positions rel_extent"),
)
SIZES: dict[str, int] = {name: size for size, names in _NAMES for name in names.split()}
DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"),
    *("decoder_layers", "encoder_layers", "num_decoder_layers", "num_encoder_layers"),
)
KV_NAMES = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
SWITCHES = {
    "use_sliding_window": True,
    # weights of the usual 0.02 would leave attention all but even over so few channels
    "initializer_range": 0.2,
    "init_std": 0.2,
}
# A model that can be either is made what its family is.
ROLES: dict[str, dict[str, Any]] = {
    "causal": {"is_decoder": True, "causal": True, "add_cross_attention": False},
    "seq2seq": {},
    "encoder": {"is_decoder": False, "causal": False, "add_cross_attention": False},
}
PATCH, SIDE = 2, 12  # of a picture: pixels along a patch, and patches along a side
IMAGE = {"patch_size": PATCH, "image_size": PATCH * SIDE}
# set even where the usual value is None
OPTIONAL = (
    *KV_NAMES,
    *("sliding_window", "head_dim", "moe_intermediate_size"),
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
)
GEMMA4 = {
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "global_head_dim": 16,
    "num_kv_shared_layers": 1,
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# What cannot be told from names: kinds of layer that the usual configuration does not show, and
# sizes that mean something else than elsewhere.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": dict.fromkeys(
            ("sliding_attention", "full_attention"), DEFAULT_ROPE | {"mrope_section": [2, 1, 1]}
        ),
    },
    # every checkpoint says rope_theta, and the class has no value for it
    "dbrx": {"attn_config": {"kv_n_heads": KV_HEADS, "rope_theta": 10000.0, "clip_qkv": 8}},
    "distilbert": {"dim": WIDTH, "hidden_dim": 48},
    "esm": {
        "vocab_size": SPECIAL[-1] + 1,
        "pad_token_id": SPECIAL[2],
        "mask_token_id": SPECIAL[3],
    },
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": None},
    "laguna": {"layer_types": ["sliding_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": None},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": SPECIAL[-1] + 1, "entity_emb_size": WIDTH},
    "mamba2": {"head_dim": 16},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"]},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_n_heads": KV_HEADS,
    },
    "mpnet": {"relative_attention_num_buckets": 32},  # whatever it is told
    "prophetnet": {"pad_token_id": 0},  # its steps are refused with any other
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"],
        "ple_layer_ids": [1],
        "eos_token_id": SPECIAL[1],
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_WIDTH,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},  # two recurrent layers, then attention
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 64), "hash_seed": 0},
    # below 64 per head its cache is rounded up, and what is cached is not
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * HEAD_WIDTH,
        "mamba_dt_rank": "auto",
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zaya": {"num_experts_per_tok": 1},
}


def tiny(
    config_class: Any,
    kv_heads: int = KV_HEADS,
    family: str = "causal",
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What to make a small configuration of a class with; nested ones as nested mappings.

    `options` are a person's own values; each must be a name of the configuration.
    """
    with calling("__init__"):
        usual = vars(config_class())
    options, own = dict(options or {}), OWN.get(config_class.model_type, {})
    _check(options, config_class)
    names = list(signature(config_class.__init__).parameters)
    attributes = getattr(config_class, "attribute_map", {})
    wanted = next((options[one] for one in DEPTHS if type(options.get(one)) is int), None)
    layers = _shorten(usual, wanted)
    depth = max([2] + [len(one) for one in (layers | own).values() if isinstance(one, list)])
    found: dict[str, Any] = {}
    for name in names:
        stored = attributes.get(name, name)
        if stored not in usual or name in layers or name.startswith("_"):
            continue
        value = usual[stored]
        if hasattr(value, "to_dict"):
            theirs = _names_of(type(value)) - set(names)  # what only the inner one takes
            inner = {one: options.pop(one) for one in list(options) if one in theirs}
            found[name] = tiny(type(value), kv_heads, family, inner)
            continue
        small = _small(name, value, depth, kv_heads, family)
        if small is not value:
            found[name] = small
    return found | layers | own | options


def _check(options: Mapping[str, Any], config_class: Any) -> None:
    known = _names_of(config_class) if options else set()
    for name in options:
        if name not in known:
            hint = registry.suggest(name, sorted(known))
            raise InputError(f"{config_class.__name__} has no {name!r}; {hint}")


def _names_of(config_class: Any) -> set[str]:
    """Every name that a configuration takes, those of configurations inside it too."""
    with calling("__init__"):
        usual = vars(config_class())
    aliases = getattr(config_class, "attribute_map", {})
    names = {*signature(config_class.__init__).parameters, *usual, *aliases}
    names -= {"self", "kwargs"}
    for value in usual.values():
        if hasattr(value, "to_dict"):
            names |= _names_of(type(value))
    return {name for name in names if not name.startswith("_")}


def _small(name: str, value: Any, depth: int, kv_heads: int, family: str) -> object:
    if name in SWITCHES:
        return SWITCHES[name]
    if name in ROLES[family]:
        return ROLES[family][name]
    if isinstance(value, bool) or (value is None and name not in OPTIONAL):
        return value
    if name.endswith(("token_id", "token_index")):  # 0 too: some count it as padding in a text
        return _special(name)
    if value == 0:
        return value
    if name in DEPTHS:
        return depth
    if name in IMAGE and family == "encoder":
        return IMAGE[name] if isinstance(value, int) else type(value)([IMAGE[name]] * len(value))
    if name in KV_NAMES:
        return kv_heads
    if name == "rope_parameters" and isinstance(value, Mapping):
        return _rope(value)
    return SIZES[name] if name in SIZES and not isinstance(value, float | str) else value


def _special(name: str) -> int:
    """An id for a token that is not part of a text; images and sounds share one."""
    known = ("bos", "eos", "pad")
    first = name.partition("_")[0]
    return SPECIAL[known.index(first)] if first in known else SPECIAL[len(known)]


def _shorten(usual: Mapping[str, Any], wanted: int | None = None) -> dict[str, list[Any]]:
    """Lists with an entry a layer, cut down to layers that bring a kind not there before, or to
    as many as are wanted."""
    depth = next((usual[name] for name in DEPTHS if isinstance(usual.get(name), int)), None)
    lists = {
        name: list(value)
        for name, value in usual.items()
        if isinstance(value, list | tuple) and len(value) == depth and not name.startswith("_")
    }
    indices = {name for name, value in lists.items() if value == list(range(len(value)))}
    seen: set[tuple[str, str]] = set()
    chosen: list[int] = []
    for layer in range(depth or 0):
        kinds = {(name, repr(lists[name][layer])) for name in lists.keys() - indices}
        if not kinds <= seen:
            seen |= kinds
            chosen.append(layer)
    chosen = chosen if len(chosen) > 1 else [0, 1][:depth]
    if wanted:
        chosen = [chosen[layer % len(chosen)] for layer in range(wanted)]
    return {
        name: list(range(len(chosen)))
        if name in indices
        else [_entry(name, value[at]) for at in chosen]
        for name, value in lists.items()
    }


def _entry(name: str, value: object) -> object:
    size = SIZES.get(name.removesuffix("_per_layer"))
    return value if size is None or not isinstance(value, int) else size


def _rope(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters as they are, but for sections that must fill half a head."""
    found: dict[str, Any] = {}
    for name, value in usual.items():
        if isinstance(value, Mapping):
            found[name] = _rope(value)
        elif name == "mrope_section" and isinstance(value, Sequence):
            found[name] = [2, 1, 1]
        else:
            found[name] = value
    return found
