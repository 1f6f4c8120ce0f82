"""FLASH-pytorch: what a position of causal GAU gives depends on the length of its text.

Scores are divided by the length of the whole text, so a beginning alone gives something else than
the same beginning of a longer text: training and generation differ.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from flash_pytorch import GAU
except ImportError as error:
    print(f"missing: {error}; pip install FLASH-pytorch")
    sys.exit(2)

LENGTH = 37
torch.manual_seed(1)
model = GAU(dim=64, query_key_dim=16, causal=True).eval()
x = torch.randn(1, LENGTH, 64)
wrong = 0
with torch.no_grad():
    whole = model(x)
    for cut in (5, 10, 20):
        off = (whole[:, :cut] - model(x[:, :cut])).abs().max().item()
        if off > 1e-4:
            wrong += 1
            size = f"{off:.2g} of {whole.abs().max():.2g}"
            print(f"wrong: {cut} inputs alone and as a beginning of {LENGTH} differ by {size}")
sys.exit(1 if wrong else 0)
