"""x-transformers: with `shift_tokens`, what stands in left padding reaches the text behind it.

`shift` clears padding where it is given the mask. The feedforward layers are not given it, so the
last padding token is shifted into the first real one.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from x_transformers import Decoder, TransformerWrapper
except ImportError as error:
    print(f"missing: {error}; pip install x-transformers")
    sys.exit(2)

LENGTH, PADDING, TOKENS = 17, 4, 101
torch.manual_seed(1)
layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, shift_tokens=1)
model = TransformerWrapper(num_tokens=TOKENS, max_seq_len=64, attn_layers=layers).eval()
text = torch.randint(TOKENS, (1, LENGTH))
other = text.clone()
other[:, :PADDING] = (text[:, :PADDING] + 1) % TOKENS
mask = torch.arange(LENGTH)[None] >= PADDING  # True: a real token
with torch.no_grad():
    before, after = model(text, mask=mask), model(other, mask=mask)
moved = (before - after)[:, PADDING:].abs().max().item()
if moved > 1e-4:
    print(f"wrong: other tokens in {PADDING} masked places move real logits by {moved:.2g}")
    sys.exit(1)
print("right: masked tokens move no real logit")
