"""local-attention: decoding with a cache is not the whole text, in three ways.

Rotary positions (the default): a step stores its keys rotated, and the next rotates them again.
`qk_rmsnorm`: steps scale by 1/sqrt(d), the whole text by `qk_scale`.
`exact_windowsize=False`: the last position of each window attends to the window before only.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from local_attention import LocalMHA
except ImportError as error:
    print(f"missing: {error}; pip install local-attention")
    sys.exit(2)

CASES = {
    "without rotary positions": {"use_rotary_pos_emb": False},
    "the default": {},
    "qk_rmsnorm": {"use_rotary_pos_emb": False, "qk_rmsnorm": True},
    "exact_windowsize=False": {"use_rotary_pos_emb": False, "exact_windowsize": False},
}
LENGTH, BEGINNING = 31, 10
wrong = 0
for name, options in CASES.items():
    torch.manual_seed(1)
    model = LocalMHA(dim=64, window_size=8, heads=4, dim_head=16, causal=True, **options).eval()
    x = torch.randn(1, LENGTH, 64)
    off = {}
    with torch.no_grad():
        whole = model(x)
        _, cache = model(x[:, :BEGINNING], return_cache=True)
        for at in range(BEGINNING, LENGTH):
            out, cache = model(x[:, at : at + 1], cache=cache, return_cache=True)
            off[at] = (out[:, 0] - whole[:, at]).abs().max().item()
    places = [at for at, size in off.items() if size > 1e-4]
    if places:
        wrong += 1
        size = f"by up to {max(off.values()):.2g} of {whole.abs().max():.2g}"
        print(f"wrong: {name}: steps {', '.join(map(str, places[:4]))} … are off {size}")
    else:
        print(f"right: {name}: steps are off by {max(off.values()):.1g}")
sys.exit(1 if wrong else 0)
