"""h-transformer-1d: with causal=True many outputs do not depend on tokens before them.

Levels are counted as log2(length / block) - 1. For one block that is -1, and attention adds
nothing; for two it is 0, and the second block does not attend to the first.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from h_transformer_1d import HTransformer1D
except ImportError as error:
    print(f"missing: {error}; pip install h-transformer-1d")
    sys.exit(2)

TOKENS, BLOCK = 101, 8
torch.manual_seed(1)
model = HTransformer1D(
    num_tokens=TOKENS,
    dim=64,
    depth=2,
    max_seq_len=256,
    causal=True,
    heads=4,
    dim_head=16,
    block_size=BLOCK,
).eval()
wrong = 0
for length in (BLOCK, 2 * BLOCK, 4 * BLOCK):
    text = torch.randint(TOKENS, (1, length))
    changed = text.clone()
    changed[0, 0] = (text[0, 0] + 1) % TOKENS
    with torch.no_grad():
        moved = (model(text) - model(changed))[0].abs().amax(-1)
    blind = (moved < 1e-6).nonzero().flatten().tolist()
    if blind:
        wrong += 1
        print(f"wrong: of {length} tokens, the first moves none of outputs {blind}")
sys.exit(1 if wrong else 0)
