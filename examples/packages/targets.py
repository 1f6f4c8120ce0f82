"""Models of packages whose constructor wants more than key=value, each built small.

`packages.txt` names them as `examples/packages/targets.py:NAME`; nothing is imported or downloaded
before a target is asked for. A wrapper says how the model is called, and changes nothing else.

Axes: b batch, t time, c width; tokens are [b, t].
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TOKENS, WIDTH, HEADS, HEAD_WIDTH, LAYERS, LONGEST = 29, 32, 4, 8, 2, 256


class Tokens(nn.Module):
    """A model of tokens [b, t], called by a function that gives logits [b, t, vocabulary]."""

    def __init__(self, model: nn.Module, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call, self.vocab_size = model, call, TOKENS

    def forward(self, tokens: Tensor) -> Any:
        return self.call(self.model, tokens)


class Sequences(nn.Module):
    """A model of vectors [b, t, c], called by a function that gives vectors."""

    def __init__(self, model: nn.Module, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call, self.width, self.heads = model, call, WIDTH, HEADS

    def forward(self, x: Tensor) -> Any:
        return self.call(self.model, x)


def causal_mask(t: int) -> Tensor:
    """Which keys a query attends to, [t, t]."""
    return torch.ones(t, t, dtype=torch.bool).tril()


def additive_mask(x: Tensor) -> Tensor:
    """The same, to be added to scores: 0, or -inf where hidden."""
    t = x.shape[1]
    return torch.full((t, t), -torch.inf, dtype=x.dtype).triu(1)


def x_transformer(**options: Any) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=HEAD_WIDTH, **options)
    return TransformerWrapper(num_tokens=TOKENS, max_seq_len=LONGEST, attn_layers=layers)


def litgpt(window: int | None = None) -> nn.Module:
    from litgpt import GPT, Config

    return GPT(
        Config(
            block_size=LONGEST,
            vocab_size=TOKENS,
            padded_vocab_size=TOKENS,
            n_layer=LAYERS,
            n_head=HEADS,
            n_query_groups=2,
            n_embd=WIDTH,
            sliding_window_size=window,
            sliding_window_indices=None if window is None else [1] * LAYERS,
        )
    )


def mamba() -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=WIDTH, n_layers=LAYERS))


def torchtune() -> nn.Module:
    from torchtune.models.llama3 import llama3

    return llama3(
        vocab_size=TOKENS,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=2,
        embed_dim=WIDTH,
        max_seq_len=LONGEST,
    )


def torchscale(**options: Any) -> nn.Module:
    from torchscale.architecture.config import DecoderConfig
    from torchscale.architecture.decoder import Decoder

    config = DecoderConfig(
        vocab_size=TOKENS,
        decoder_embed_dim=WIDTH,
        decoder_attention_heads=HEADS,
        decoder_ffn_embed_dim=64,
        decoder_layers=LAYERS,
        **options,
    )
    model = Decoder(config, embed_tokens=nn.Embedding(TOKENS, WIDTH))
    return Tokens(model, lambda model, tokens: model(tokens)[0])


def retnet(chunkwise: bool = False) -> nn.Module:
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    config = RetNetConfig(
        vocab_size=TOKENS,
        decoder_embed_dim=WIDTH,
        decoder_value_embed_dim=WIDTH,
        decoder_retention_heads=HEADS,
        decoder_ffn_embed_dim=64,
        decoder_layers=LAYERS,
        chunkwise_recurrent=chunkwise,
        recurrent_chunk_size=8,
    )
    model = RetNetDecoder(config, embed_tokens=nn.Embedding(TOKENS, WIDTH))
    return Tokens(model, lambda model, tokens: model(tokens)[0])


def curated(architecture: str = "llama") -> nn.Module:
    from curated_transformers import models
    from curated_transformers.layers.attention import AttentionMask

    name = {"llama": "Llama", "neox": "GPTNeoX", "falcon": "Falcon", "mpt": "MPT"}[architecture]
    heads = (
        {"n_query_heads": HEADS, "n_key_value_heads": 2}
        if name in ("Llama", "Falcon")
        else {"n_attention_heads" if name == "GPTNeoX" else "n_query_heads": HEADS}
    )
    config = getattr(models, f"{name}Config")(
        hidden_width=WIDTH,
        n_hidden_layers=LAYERS,
        n_pieces=TOKENS,
        dtype=torch.float32,
        **({} if name == "Falcon" else {"intermediate_width": 64}),
        **heads,
    )
    model = getattr(models, f"{name}CausalLM")(config)
    return Tokens(
        model,
        lambda model, tokens: (
            model(tokens, AttentionMask(torch.ones_like(tokens, dtype=torch.bool))).logits
        ),
    )


def open_clip() -> nn.Module:
    from open_clip.transformer import Transformer

    model = Transformer(width=WIDTH, layers=LAYERS, heads=HEADS)
    return Sequences(model, lambda model, x: model(x, attn_mask=additive_mask(x)))


def esm() -> nn.Module:
    from esm import ESM2

    model = ESM2(num_layers=LAYERS, embed_dim=WIDTH, attention_heads=HEADS, token_dropout=False)
    letters = torch.arange(TOKENS) % 20 + 4  # amino acids; the other tokens mark padding and ends
    return Tokens(model, lambda model, tokens: model(letters[tokens])["logits"])


def longnet() -> nn.Module:
    from long_net import LongNetTransformer

    return LongNetTransformer(
        dim=WIDTH,
        depth=LAYERS,
        num_tokens=TOKENS,
        dim_head=HEAD_WIDTH,
        heads=HEADS,
        segment_size=8,
        dilation_rate=1,
    )


def yet_another_retnet(form: str = "parallel") -> nn.Module:
    from yet_another_retnet.retnet import RetNet

    model = RetNet(
        num_tokens=TOKENS, d_model=WIDTH, nhead=HEADS, num_layers=LAYERS, dim_feedforward=64
    )
    return Tokens(model, lambda model, tokens: getattr(model, f"forward_{form}")(tokens))


def megabyte() -> nn.Module:
    from MEGABYTE_pytorch import MEGABYTE

    return MEGABYTE(
        num_tokens=TOKENS,
        dim=(WIDTH, WIDTH),
        depth=(1, 1),
        max_seq_len=(64, 4),
        dim_head=HEAD_WIDTH,
        heads=HEADS,
    )


def pytorch_transformers() -> nn.Module:
    from pytorch_transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size_or_config_json_file=TOKENS,
            n_positions=LONGEST,
            n_ctx=LONGEST,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
        )
    )


def grouped_query() -> nn.Module:
    from grouped_query_attention_pytorch.attention import MultiheadGQA

    model = MultiheadGQA(embed_dim=WIDTH, query_heads=HEADS, kv_heads=2)
    return Sequences(model, lambda model, x: model(x, x, x, is_causal=True)[0])


def xlstm() -> nn.Module:
    from xlstm import (
        mLSTMBlockConfig,
        mLSTMLayerConfig,
        xLSTMBlockStack,
        xLSTMBlockStackConfig,
    )

    layer = mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=HEADS)
    return xLSTMBlockStack(
        xLSTMBlockStackConfig(
            mlstm_block=mLSTMBlockConfig(mlstm=layer),
            context_length=LONGEST,
            num_blocks=LAYERS,
            embedding_dim=WIDTH,
        )
    )


def joeynmt() -> nn.Module:
    from joeynmt.transformer_layers import MultiHeadedAttention

    model = MultiHeadedAttention(num_heads=HEADS, size=WIDTH)
    return Sequences(model, lambda model, x: model(x, x, x, causal_mask(x.shape[1])[None])[0])


def sockeye() -> nn.Module:
    from sockeye.layers import MultiHeadSelfAttention

    model = MultiHeadSelfAttention(depth_att=WIDTH, heads=HEADS, depth_out=WIDTH)
    return Sequences(  # it takes [t, b, c], and a mask [b * h, t, t] that is True where hidden
        model,
        lambda model, x: model(
            x.transpose(0, 1),
            mask=~causal_mask(x.shape[1]).expand(len(x) * HEADS, -1, -1),
        )[0].transpose(0, 1),
    )
