"""litgpt: with sliding windows, a prefill in chunks is not the whole text.

The cache is a ring. A chunk overwrites keys that its own first queries still need, and the causal
mask counts places in the ring as positions. A prefill longer than the window is refused, with the
advice to use chunks no longer than it; those are wrong from the second on. Single steps are right.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from litgpt import GPT, Config
except ImportError as error:
    print(f"missing: {error}; pip install litgpt")
    sys.exit(2)

LENGTH, WINDOW, TOKENS = 24, 8, 101
torch.manual_seed(1)
config = Config(
    block_size=64,
    vocab_size=TOKENS,
    padded_vocab_size=TOKENS,
    n_layer=2,
    n_head=4,
    n_embd=64,
    sliding_window_size=WINDOW,
    sliding_window_indices=[1, 1],
)
model = GPT(config).eval()
text = torch.randint(TOKENS, (1, LENGTH))
with torch.no_grad():
    whole = model(text)
wrong = 0
for chunk in (1, 4, 8):
    model.set_kv_cache(batch_size=1)
    with torch.no_grad():
        pieces = [
            model(text[:, at : at + chunk], input_pos=torch.arange(at, at + chunk))
            for at in range(0, LENGTH, chunk)
        ]
    model.clear_kv_cache()
    off = (torch.cat(pieces, dim=1) - whole).abs().amax(-1)[0]
    places = (off > 1e-4).nonzero().flatten().tolist()
    if places:
        wrong += 1
        size = f"by up to {off.max():.2g} of {whole.abs().max():.2g}"
        print(f"wrong: chunks of {chunk}: positions from {places[0]} on are off {size}")
    else:
        print(f"right: chunks of {chunk}: off by {off.max():.1g}")
sys.exit(1 if wrong else 0)
