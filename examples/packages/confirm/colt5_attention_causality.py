"""CoLT5-attention: the autoregressive attention depends on later inputs of its window.

Which queries of a window get heavy attention is chosen by comparing all of them, later ones too.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from colt5_attention import ConditionalRoutedAutoregressiveAttention
except ImportError as error:
    print(f"missing: {error}; pip install CoLT5-attention")
    sys.exit(2)

LENGTH, CUT = 32, 20
torch.manual_seed(1)
model = ConditionalRoutedAutoregressiveAttention(
    dim=64,
    num_heavy_tokens_q=4,
    num_heavy_tokens_kv=4,
    light_dim_head=16,
    light_heads=4,
    light_window_size=8,
    heavy_window_size=8,
    heavy_dim_head=16,
    heavy_heads=4,
).eval()
x, other = torch.randn(2, 1, LENGTH, 64)
with torch.no_grad():
    before, after = model(x), model(torch.cat((x[:, :CUT], other[:, CUT:]), dim=1))
moved = (before - after)[0, :CUT].abs().amax(-1)
places = (moved > 1e-4).nonzero().flatten().tolist()
if places:
    size = f"by up to {moved.max():.2g} of {before.abs().max():.2g}"
    print(f"wrong: inputs from {CUT} on are changed, and outputs {places} move {size}")
    sys.exit(1)
print("right: no output before a change moves")
