"""longnet: LongNetTransformer, which AutoregressiveWrapper trains, depends on later tokens.

Its blocks build DilatedAttention without causal=True; `get_mask` is never called.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from long_net import LongNetTransformer
except ImportError as error:
    print(f"missing: {error}; pip install longnet")
    sys.exit(2)

LENGTH, CUT, TOKENS = 32, 20, 101
torch.manual_seed(1)
model = LongNetTransformer(
    dim=64, depth=2, num_tokens=TOKENS, dim_head=16, heads=4, dilation_rate=1, segment_size=8
).eval()
text = torch.randint(TOKENS, (1, LENGTH))
changed = text.clone()
changed[:, CUT:] = (text[:, CUT:] + 1) % TOKENS
with torch.no_grad():
    before, again, after = model(text), model(text), model(changed)
moved = (before - after)[0, :CUT].abs().amax(-1)
places = (moved > 1e-3).nonzero().flatten().tolist()
if places and torch.equal(before, again):
    size = f"by up to {moved.max():.2g} of {before.abs().max():.2g}"
    print(f"wrong: tokens from {CUT} on change, and logits {places} move {size}")
    sys.exit(1)
print("right: no logit before a change moves")
