"""FLASH-pytorch: padding that is masked moves the text, in two ways.

`shift_tokens` (the default of FLASHTransformer) moves half of each token's features one place on,
before the mask is used: those of the last padding token go to the first real one.
GAU divides scores by the length with its padding, so a text gives something else once it is padded.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from flash_pytorch import GAU, FLASHTransformer
except ImportError as error:
    print(f"missing: {error}; pip install FLASH-pytorch")
    sys.exit(2)

LENGTH, PADDING, TOKENS = 23, 5, 101
text = torch.randint(TOKENS, (1, LENGTH), generator=torch.Generator().manual_seed(1))
other = text.clone()
other[:, :PADDING] = (text[:, :PADDING] + 1) % TOKENS
mask = torch.arange(LENGTH)[None] >= PADDING  # True: a real token
wrong = 0
for shift in (False, True):
    torch.manual_seed(1)
    model = FLASHTransformer(
        num_tokens=TOKENS,
        dim=64,
        depth=2,
        group_size=8,
        query_key_dim=16,
        causal=True,
        shift_tokens=shift,
    ).eval()
    with torch.no_grad():
        before, after = model(text, mask=mask), model(other, mask=mask)
    moved = (before - after)[:, PADDING:].abs().max().item()
    verdict = "wrong" if moved > 1e-4 else "right"
    wrong += verdict == "wrong"
    print(f"{verdict}: shift_tokens={shift}: other masked tokens move real logits by {moved:.2g}")
torch.manual_seed(1)
model = GAU(dim=64, query_key_dim=16).eval()
x = torch.randn(1, 16, 64)
mask = torch.arange(16)[None] < 7
with torch.no_grad():
    alone, padded = model(x[:, :7]), model(x, mask=mask)[:, :7]
off = (alone - padded).abs().max().item()
verdict = "wrong" if off > 1e-4 else "right"
wrong += verdict == "wrong"
print(f"{verdict}: GAU: 7 inputs alone and padded to 16 differ by {off:.2g} of {alone.max():.2g}")
sys.exit(1 if wrong else 0)
