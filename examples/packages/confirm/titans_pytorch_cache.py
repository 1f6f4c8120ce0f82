"""titans-pytorch: NeuralMemory resumed inside a chunk gives something else than the whole text.

Resumed at a multiple of `chunk_size`, and token by token, it is right. After another beginning the
ends of later chunks differ, or it raises.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from titans_pytorch import NeuralMemory
except ImportError as error:
    print(f"missing: {error}; pip install titans-pytorch")
    sys.exit(2)

LENGTH, CHUNK = 17, 4
torch.manual_seed(1)
model = NeuralMemory(dim=64, chunk_size=CHUNK).eval()
x = torch.randn(1, LENGTH, 64)
whole = model(x)[0].detach()
wrong = 0
for beginning in (4, 5, 6, 8, 9):
    try:
        first, state = model(x[:, :beginning])
        second, _ = model(x[:, beginning:], state=state)
    except RuntimeError as error:
        wrong += 1
        print(f"wrong: resumed at {beginning}: {error}")
        continue
    off = (torch.cat((first, second), dim=1) - whole).abs().amax(-1)[0]
    places = (off > 1e-3).nonzero().flatten().tolist()
    if places:
        wrong += 1
        size = f"by up to {off.max():.2g} of {whole.abs().max():.2g}"
        print(f"wrong: resumed at {beginning}: positions {places} are off {size}")
    else:
        print(f"right: resumed at {beginning}: off by {off.max():.1g}")
sys.exit(1 if wrong else 0)
