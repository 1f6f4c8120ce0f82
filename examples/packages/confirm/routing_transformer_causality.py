"""routing-transformer: with causal=True an output depends on later tokens.

Each cluster takes the tokens of the whole text that are nearest to it, so a later token can push
an earlier one out, or let it in.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from routing_transformer import RoutingTransformerLM
except ImportError as error:
    print(f"missing: {error}; pip install routing-transformer")
    sys.exit(2)

LENGTH, CUT, TOKENS = 64, 40, 101
torch.manual_seed(1)
model = RoutingTransformerLM(
    num_tokens=TOKENS,
    dim=64,
    depth=2,
    max_seq_len=256,
    heads=4,
    dim_head=16,
    window_size=8,
    causal=True,
).eval()
text = torch.randint(TOKENS, (1, LENGTH))
changed = text.clone()
changed[:, CUT:] = (text[:, CUT:] + 1) % TOKENS
with torch.no_grad():
    model(text)  # the first call sets the clusters
    before, again, after = model(text)[0], model(text)[0], model(changed)[0]
assert torch.equal(before, again)
moved = (before - after)[0, :CUT].abs().amax(-1)
if moved.max() > 1e-4:
    many = int((moved > 1e-4).sum())
    size = f"by up to {moved.max():.2g} of {before.abs().max():.2g}"
    print(f"wrong: tokens from {CUT} on change, and {many} of {CUT} earlier logits move {size}")
    sys.exit(1)
print("right: no output before a change moves")
