"""native-sparse-attention-pytorch: the first steps with a cache do not attend to the memory.

A whole text attends to `compress_mem_kv` everywhere, a step only once a compressed block exists.
It starts as zeros, so nothing is seen before training; here it is set to random numbers.
Exit code 1 while it is so, 0 once it is mended, 2 if the package is missing.
"""

import sys

try:
    import torch
    from native_sparse_attention_pytorch import SparseAttention
except ImportError as error:
    print(f"missing: {error}; pip install native-sparse-attention-pytorch")
    sys.exit(2)

LENGTH = 15
wrong = 0
for stride in (2, 4):
    torch.manual_seed(1)
    model = SparseAttention(
        dim=64,
        dim_head=16,
        heads=4,
        sliding_window_size=4,
        compress_block_size=4,
        compress_block_sliding_stride=stride,
        selection_block_size=4,
        num_selected_blocks=2,
        causal=True,
    ).eval()
    torch.nn.init.normal_(model.compress_mem_kv)
    x = torch.randn(1, LENGTH, 64)
    off = {}
    with torch.no_grad():
        whole = model(x)
        _, cache = model(x[:, :1], return_cache=True)
        for at in range(1, LENGTH):
            out, cache = model(x[:, at : at + 1], cache=cache, return_cache=True)
            off[at] = (out[:, -1] - whole[:, at]).abs().max().item()
    places = [at for at, size in off.items() if size > 1e-4]
    if places:
        wrong += 1
        size = f"by up to {max(off.values()):.2g} of {whole.abs().max():.2g}"
        print(f"wrong: stride {stride}: steps {', '.join(map(str, places))} are off {size}")
sys.exit(1 if wrong else 0)
