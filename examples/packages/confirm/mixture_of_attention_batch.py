"""mixture-of-attention: with two experts, a row attends to tokens of another row of its batch.

The router of colt5-attention repeats x to [b · r, n, d] and then takes tokens from it by indices
[b, r, k]: row i gets those of row i // r.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from mixture_of_attention import MixtureOfAttention
except ImportError as error:
    print(f"missing: {error}; pip install mixture-of-attention")
    sys.exit(2)

torch.manual_seed(1)
model = MixtureOfAttention(
    dim=64, num_routed_queries=4, num_routed_key_values=4, dim_head=16, heads=4, use_triton=False
).eval()
x = torch.randn(3, 31, 64)
with torch.no_grad():
    together = model(x)
    alone = torch.cat([model(row[None]) for row in x])
wrong = 0
for row, moved in enumerate((together - alone).abs().amax((1, 2)).tolist()):
    verdict = "wrong" if moved > 1e-3 else "right"
    wrong += moved > 1e-3
    print(f"{verdict}: row {row} of 3, alone and together: off by {moved:.2g} of {alone.max():.2g}")
sys.exit(1 if wrong else 0)
