"""Mega-pytorch: with `laplacian_attn_fn`, what a position gives depends on the length of its text.

Scores are divided by the length of the whole text, so a beginning alone gives something else than
the same beginning of a longer text: training and generation differ. `gamma` of queries and keys
starts near 0, which hides it; here it is 1, as it may become.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from mega_pytorch import Mega
except ImportError as error:
    print(f"missing: {error}; pip install Mega-pytorch")
    sys.exit(2)

LENGTH, CUT, TOKENS = 37, 10, 101
wrong = 0
for laplacian in (False, True):
    torch.manual_seed(1)
    model = Mega(
        dim=64,
        num_tokens=TOKENS,
        depth=2,
        ema_heads=4,
        attn_dim_qk=16,
        attn_dim_value=64,
        laplacian_attn_fn=laplacian,
    ).eval()
    for module in model.modules():
        if type(module).__name__ == "OffsetScale":
            torch.nn.init.ones_(module.gamma)
    text = torch.randint(TOKENS, (1, LENGTH))
    with torch.no_grad():
        whole, alone = model(text)[:, :CUT], model(text[:, :CUT])
    off = (whole - alone).abs().max().item()
    verdict = "wrong" if off > 1e-3 else "right"
    wrong += verdict == "wrong"
    size = f"{off:.2g} of {whole.abs().max():.2g}"
    print(f"{verdict}: laplacian_attn_fn={laplacian}: alone and in {LENGTH} tokens: off by {size}")
sys.exit(1 if wrong else 0)
