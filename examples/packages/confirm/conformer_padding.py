"""conformer: what stands in padding reaches the text beside it, though a mask is given.

ConformerBlock gives its mask to attention, and not to the convolution behind it.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from conformer import ConformerBlock
except ImportError as error:
    print(f"missing: {error}; pip install conformer")
    sys.exit(2)

LENGTH, REAL, KERNEL = 23, 14, 5
torch.manual_seed(1)
model = ConformerBlock(dim=64, dim_head=16, heads=4, conv_kernel_size=KERNEL).eval()
x, other = torch.randn(2, 1, LENGTH, 64)
other = torch.cat((x[:, :REAL], other[:, REAL:]), dim=1)
mask = torch.arange(LENGTH)[None] < REAL  # True: a real frame
with torch.no_grad():
    moved = (model(x, mask=mask) - model(other, mask=mask))[0, :REAL].abs().amax(-1)
places = (moved > 1e-4).nonzero().flatten().tolist()
if places:
    print(f"wrong: other masked inputs move real outputs {places} of {REAL} by {moved.max():.2g}")
    sys.exit(1)
print("right: masked inputs move no real output")
