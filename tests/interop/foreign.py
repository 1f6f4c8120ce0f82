"""Small models of transformers for the tests: one of each family, far from its start."""

import importlib.util
import warnings

import pytest
import torch

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="pip install 'attnlab[hf]'"
)
SIZE = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {**SIZE, "num_key_value_heads": 2}
LOCAL, FULL = "sliding_attention", "full_attention"
MIXED = {"sliding_window": 5, "layer_types": [LOCAL, FULL, LOCAL]}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 16}
PARTIAL = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}
TWO = {
    LOCAL: {"rope_type": "default", "rope_theta": 100.0},
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
}
GEMMA2 = {**GROUPED, **MIXED, "head_dim": 8, "query_pre_attn_scalar": 12}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
GPT2 = {"vocab_size": 31, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4}
GPT2 |= {"bos_token_id": None, "eos_token_id": None}

# name: (class of the config, its fields)
MODELS = {
    "llama": ("LlamaConfig", {**GROUPED, "rope_parameters": LLAMA3}),
    "llama with biases, tied": (
        "LlamaConfig",
        {**SIZE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
        | {"head_dim": 10, "num_key_value_heads": 1},
    ),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "ministral": ("MinistralConfig", {**GROUPED, **MIXED, "head_dim": 6}),
    "qwen2": (
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "qwen2 with yarn": ("Qwen2Config", {**GROUPED, "rope_parameters": YARN}),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 8}),
    "smollm3": ("SmolLM3Config", {**GROUPED, "no_rope_layers": [1, 0, 1]}),
    "gemma": ("GemmaConfig", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**GEMMA2, **CAPS}),
    "gemma3": ("Gemma3TextConfig", {**GEMMA2, "rope_parameters": TWO}),
    "gpt2": ("GPT2Config", GPT2),
    "gpt2, untied, with gelu": (
        "GPT2Config",
        {**GPT2, "activation_function": "gelu", "tie_word_embeddings": False, "n_inner": 50},
    ),
    "gpt_neox": ("GPTNeoXConfig", {**SIZE, "rope_parameters": PARTIAL}),
    "gpt_neox in turn": (
        "GPTNeoXConfig",
        {**SIZE, "rope_parameters": PARTIAL, "use_parallel_residual": False},
    ),
    "starcoder2": ("Starcoder2Config", {**GROUPED, "sliding_window": 7}),
    "phi3": ("Phi3Config", {**GROUPED, "sliding_window": 9}),
}


def build(name, **changes):
    """In float64, its tables of rotations too."""
    import transformers

    from attnlab.audit.hf.running import in_float64

    kind, fields = MODELS[name]
    torch.manual_seed(0)
    with in_float64(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, kind)(**{**fields, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        model = model.double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(rows=2, length=27):
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


def logits(model, given):
    from attnlab.audit.hf.running import in_float64

    with torch.no_grad(), in_float64():
        return model(given).logits


def save(model, folder, tokenizer=True):
    """As save_pretrained does, with a tokenizer of 31 characters."""
    import json

    from attnlab.data.tokens import CharacterTokenizer
    from attnlab.interop import tokens as ours

    model.save_pretrained(folder)
    if tokenizer:
        made = CharacterTokenizer(sorted("abcdefghijklmnopqrstuvwxyz ,.'\n"), special=False)
        (folder / "tokenizer.json").write_text(json.dumps(ours.tokenizer_json(made)))
    return folder
