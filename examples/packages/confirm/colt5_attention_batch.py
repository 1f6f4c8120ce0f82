"""CoLT5-attention: with num_routed_kv=2, a row attends to tokens of another row of its batch.

The router repeats x to [b · r, n, d] and then takes tokens from it by indices [b, r, k]: row i gets
those of row i // r.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from colt5_attention import ConditionalRoutedAttention
except ImportError as error:
    print(f"missing: {error}; pip install CoLT5-attention")
    sys.exit(2)

x = torch.randn(3, 31, 64, generator=torch.Generator().manual_seed(1))
wrong = 0
for routes in (1, 2):
    torch.manual_seed(1)
    model = ConditionalRoutedAttention(
        dim=64,
        num_heavy_tokens_q=4,
        num_heavy_tokens_kv=4,
        num_routed_kv=routes,
        light_dim_head=16,
        light_heads=4,
        light_window_size=8,
        heavy_dim_head=16,
        heavy_heads=4,
    ).eval()
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(row[None]) for row in x])
    moved = (together - alone).abs().amax((1, 2))
    verdict = "wrong" if moved.max() > 1e-3 else "right"
    wrong += verdict == "wrong"
    sizes = ", ".join(f"{one:.2g}" for one in moved.tolist())
    print(f"{verdict}: num_routed_kv={routes}: rows alone and together differ by {sizes}")
sys.exit(1 if wrong else 0)
