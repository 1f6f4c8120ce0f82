"""x-transformers: with two options of Decoder, decoding with the KV cache is not the whole text.

`shift_tokens`: a step has no token before it to shift in, so zeros take its place.
`attn_data_dependent_alibi`: a step knows no forget gates of the tokens before it.
`can_cache_kv` is True for both, so `generate` uses the cache.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from x_transformers import Decoder, TransformerWrapper
except ImportError as error:
    print(f"missing: {error}; pip install x-transformers")
    sys.exit(2)

CASES = {"nothing": {}, "shift_tokens": {"shift_tokens": 1}}
CASES["attn_data_dependent_alibi"] = {"attn_data_dependent_alibi": True}
LENGTH, BEGINNING, TOKENS = 31, 10, 101
wrong = 0
for name, options in CASES.items():
    torch.manual_seed(1)
    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **options)
    model = TransformerWrapper(num_tokens=TOKENS, max_seq_len=64, attn_layers=layers).eval()
    text = torch.randint(TOKENS, (1, LENGTH))
    with torch.no_grad():
        whole = model(text)
        _, cache = model(text[:, :BEGINNING], return_intermediates=True)
        worst = 0.0
        for end in range(BEGINNING + 1, LENGTH + 1):  # as generate calls it: all tokens, and cache
            logits, cache = model(text[:, :end], cache=cache, return_intermediates=True)
            worst = max(worst, (logits[:, -1] - whole[:, end - 1]).abs().max().item())
    if worst > 1e-3 and model.can_cache_kv:
        wrong += 1
        print(f"wrong: {name}: decoded logits are off by {worst:.2g} of {whole.abs().max():.2g}")
    else:
        print(f"right: {name}: decoded logits are off by {worst:.1g}")
sys.exit(1 if wrong else 0)
