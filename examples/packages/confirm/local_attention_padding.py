"""local-attention: two-way attention attends to the zeros that it pads a text with.

`autopad` fills the last window with zero keys and values, and hides them only if a mask is given:
without one, and with one that hides nothing, outputs differ.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from local_attention import LocalMHA
except ImportError as error:
    print(f"missing: {error}; pip install local-attention")
    sys.exit(2)

WINDOW = 8
torch.manual_seed(1)
model = LocalMHA(dim=64, window_size=WINDOW, heads=4, dim_head=16, causal=False).eval()
wrong = 0
for length in (5, WINDOW, 13, 2 * WINDOW):
    x = torch.randn(1, length, 64)
    with torch.no_grad():
        none, ones = model(x), model(x, mask=torch.ones(1, length, dtype=torch.bool))
    off = (none - ones).abs().max().item()
    wrong += off > 1e-4
    verdict = "wrong" if off > 1e-4 else "right"
    print(f"{verdict}: {length} positions: no mask and a mask of ones differ by {off:.2g}")
sys.exit(1 if wrong else 0)
