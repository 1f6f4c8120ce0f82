"""reformer-pytorch: with causal=True an output depends on later inputs.

Inputs are sorted by their hashes and then cut into chunks: later ones decide which earlier ones
share a chunk. The hashes are drawn in each call; here from one random seed.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from reformer_pytorch import LSHSelfAttention
except ImportError as error:
    print(f"missing: {error}; pip install reformer-pytorch")
    sys.exit(2)

LENGTH, CUT = 64, 40
torch.manual_seed(1)
model = LSHSelfAttention(dim=64, heads=4, bucket_size=8, n_hashes=2, causal=True).eval()
x, other = torch.randn(2, 1, LENGTH, 64)
outputs = []
for inputs in (x, x, torch.cat((x[:, :CUT], other[:, CUT:]), dim=1)):
    torch.manual_seed(2)
    with torch.no_grad():
        outputs.append(model(inputs))
before, again, after = outputs
assert torch.equal(before, again)
moved = (before - after)[0, :CUT].abs().amax(-1)
if moved.max() > 1e-4:
    many = int((moved > 1e-4).sum())
    size = f"by up to {moved.max():.2g} of {before.abs().max():.2g}"
    print(f"wrong: inputs from {CUT} on change, and {many} of {CUT} earlier outputs move {size}")
    sys.exit(1)
print("right: no output before a change moves")
