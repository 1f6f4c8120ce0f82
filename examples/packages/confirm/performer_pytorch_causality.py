"""performer-pytorch: causal attention depends on later keys, through the largest of them.

`softmax_kernel` subtracts the maximum over all positions from the features of keys and then adds
`eps`, so the maximum does not cancel. A large later input takes the earlier keys down to `eps`.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import contextlib
import io
import sys

try:
    import torch
    from performer_pytorch import SelfAttention
except ImportError as error:
    print(f"missing: {error}; pip install performer-pytorch")
    sys.exit(2)

LENGTH, CUT = 31, 20
torch.manual_seed(1)
with contextlib.redirect_stdout(io.StringIO()):  # it says that it has no CUDA code
    model = SelfAttention(dim=64, heads=4, dim_head=16, causal=True).eval()
x, other = torch.randn(2, 1, LENGTH, 64)
wrong = 0
for factor in (1, 3):
    changed = torch.cat((x[:, :CUT], factor * other[:, CUT:]), dim=1)
    with torch.no_grad():
        before, after = model(x), model(changed)
    moved = (before - after)[:, :CUT].abs().max().item()
    if moved > 1e-4:
        wrong += 1
        size = f"{moved:.2g} of {before.abs().max():.2g}"
        print(f"wrong: inputs from {CUT} on change, × {factor}: outputs before move by {size}")
sys.exit(1 if wrong else 0)
