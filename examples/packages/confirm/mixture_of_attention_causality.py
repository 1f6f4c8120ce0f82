"""mixture-of-attention: the autoregressive variant depends on later inputs of its window.

Which queries of a window are routed is chosen by comparing them with each other, later ones too.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys
import warnings

try:
    import torch
    from mixture_of_attention import MixtureOfAutoregressiveAttention
except ImportError as error:
    print(f"missing: {error}; pip install mixture-of-attention")
    sys.exit(2)

warnings.simplefilter("ignore")
LENGTH, CUT = 31, 20
torch.manual_seed(1)
model = MixtureOfAutoregressiveAttention(
    dim=64,
    num_routed_queries=4,
    num_routed_key_values=4,
    local_attn_window_size=8,
    dim_head=16,
    heads=4,
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
