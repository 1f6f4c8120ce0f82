"""x-transformers: three options of Decoder let an output depend on later tokens.

Two projections and two means run over the whole text instead of each position.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from x_transformers import Decoder, TransformerWrapper
except ImportError as error:
    print(f"missing: {error}; pip install x-transformers")
    sys.exit(2)

OPTIONS = ("orthog_residual", "mv_split_residual", "attn_orthog_projected_values")
LENGTH, CUT, TOKENS = 31, 20, 101
wrong = 0
for option in OPTIONS:
    torch.manual_seed(1)
    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **{option: True})
    model = TransformerWrapper(num_tokens=TOKENS, max_seq_len=64, attn_layers=layers).eval()
    text = torch.randint(TOKENS, (1, LENGTH))
    changed = text.clone()
    changed[:, CUT:] = (text[:, CUT:] + 1) % TOKENS
    with torch.no_grad():
        before, after = model(text), model(changed)
    moved = (before - after)[:, :CUT].abs().max().item()
    if moved > 1e-4:
        wrong += 1
        size = f"{moved:.2g} of {before.abs().max():.2g}"
        print(f"wrong: {option}: tokens from {CUT} on change, and earlier logits move by {size}")
sys.exit(1 if wrong else 0)
