"""coconut-pytorch: Transformer takes a mask and does not give it to its attention.

The mask sets rotary positions only, so what stands in padding moves the text beside it. Coconut
itself pads prompts of several lengths, and calls it so.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from coconut_pytorch import Transformer
except ImportError as error:
    print(f"missing: {error}; pip install coconut-pytorch")
    sys.exit(2)

LENGTH, PADDING, TOKENS = 17, 4, 101
torch.manual_seed(1)
model = Transformer(num_tokens=TOKENS, dim=64, depth=2, dim_head=16, heads=4).eval()
text = torch.randint(TOKENS, (1, LENGTH))
other = text.clone()
other[:, :PADDING] = (text[:, :PADDING] + 1) % TOKENS
mask = torch.arange(LENGTH)[None] >= PADDING  # True: a real token
with torch.no_grad():
    before, after = model(text, mask=mask), model(other, mask=mask)
moved = (before - after)[:, PADDING:].abs().max().item()
if moved > 1e-4:
    size = f"{moved:.2g} of {before.abs().max():.2g}"
    print(f"wrong: other tokens in {PADDING} masked places move real logits by {size}")
    sys.exit(1)
print("right: masked tokens move no real logit")
