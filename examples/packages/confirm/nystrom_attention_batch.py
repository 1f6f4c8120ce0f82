"""nystrom-attention: what a row gives depends on the other rows of its batch.

`moore_penrose_iter_pinv` divides by maxima over the whole tensor, rows and heads together, and
stops after 6 iterations, before the start is forgotten.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from nystrom_attention import NystromAttention
except ImportError as error:
    print(f"missing: {error}; pip install nystrom-attention")
    sys.exit(2)

torch.manual_seed(1)
model = NystromAttention(dim=64, dim_head=16, heads=4, num_landmarks=8).eval()
x = torch.randn(3, 31, 64)
wrong = 0
for factor in (1, 5):
    batch = torch.cat((x[:1], factor * x[1:]))
    with torch.no_grad():
        alone, among = model(x[:1]), model(batch)[:1]
    moved = (alone - among).abs().max().item()
    if moved > 1e-4:
        wrong += 1
        size = alone.abs().max().item()
        print(f"wrong: a row among two others (× {factor}) is off by {moved:.2g} of {size:.2g}")
sys.exit(1 if wrong else 0)
