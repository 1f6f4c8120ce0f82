"""omninet-pytorch: `forward` changes the tensor that it is given.

`x += …` adds embeddings to the caller's tensor, so a second call with it gives something else.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from omninet_pytorch import OmninetCausal
except ImportError as error:
    print(f"missing: {error}; pip install omninet-pytorch")
    sys.exit(2)

torch.manual_seed(1)
model = OmninetCausal(dim=64, depth=2, dim_head=16, heads=4).eval()
x = torch.randn(1, 17, 64)
kept = x.clone()
with torch.no_grad():
    first, second = model(x), model(x)
changed, apart = (x - kept).abs().max().item(), (first - second).abs().max().item()
if changed > 0:
    print(f"wrong: two calls moved the input by {changed:.2g}; their outputs differ by {apart:.2g}")
    sys.exit(1)
print("right: the input is as it was")
