"""Our own kernels for CUDA: banded attention in Triton, forward and backward.

`engine` is what the rest of the package uses; it imports no Triton. The modules whose functions
Triton compiles import it at their top, and are loaded when the path is first taken.
"""
