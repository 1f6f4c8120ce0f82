"""Folders of small weights in the names of several code bases, made without transformers."""

import json

import torch

from attnlab.data.tokens import CharacterTokenizer
from attnlab.interop import tokens
from attnlab.interop.streaming import write_tensors

LLAMA = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj"}
LLAMA |= {"o": "self_attn.o_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
WIDTH, LAYERS, WORDS = 24, 2, 31


def state(heads=4, kv_heads=2, head=6, *, bias=True, dtype=torch.float32, norms=False, untied=True):
    """A Llama."""
    draws = torch.Generator().manual_seed(heads * head + kv_heads)

    def draw(*shape):
        return torch.randn(*shape, generator=draws).to(dtype)

    made = {"model.embed_tokens.weight": draw(WORDS, WIDTH)}
    rows = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head, "up": 40}
    for n in range(LAYERS):
        for part, name in LLAMA.items():
            shape = {"o": (WIDTH, heads * head), "down": (WIDTH, 40)}.get(part)
            shape = shape or (rows[part], WIDTH)
            made[f"model.layers.{n}.{name}.weight"] = draw(*shape)
            if bias and part in "qkv":
                made[f"model.layers.{n}.{name}.bias"] = draw(shape[0])
        if norms:
            for part in "qk":
                made[f"model.layers.{n}.self_attn.{part}_norm.weight"] = draw(head)
        made[f"model.layers.{n}.input_layernorm.weight"] = draw(WIDTH)
    made["model.norm.weight"] = draw(WIDTH)
    if untied:
        made["lm_head.weight"] = draw(WORDS, WIDTH)
    return made


def config(heads=4, kv_heads=2, head=6, **more):
    return {
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "tie_word_embeddings": False,
        **more,
    }


def folder(place, tensors, plain=None, *, most=10**9):
    place.mkdir()
    write_tensors(place, tensors.items(), most)
    if plain is not None:
        (place / "config.json").write_text(json.dumps(plain))
    return place


def readable(place, **changes):
    """A Llama that is read here, tokenizer and all."""
    made = state(4, 4, bias=False, untied=False)
    for n in range(LAYERS):
        layer = f"model.layers.{n}"
        made[f"{layer}.mlp.gate_proj.weight"] = made[f"{layer}.mlp.up_proj.weight"].flip(0)
        made[f"{layer}.post_attention_layernorm.weight"] = torch.ones(WIDTH)
    more = {"vocab_size": WORDS, "intermediate_size": 40, "max_position_embeddings": 32}
    plain = config(4, 4, tie_word_embeddings=True, **more, **changes)
    tokenizer = CharacterTokenizer(sorted("abcdefghijklmnopqrstuvwxyz ,.'\n"), special=False)
    folder(place, made, plain)
    (place / "tokenizer.json").write_text(json.dumps(tokens.tokenizer_json(tokenizer)))
    return place
