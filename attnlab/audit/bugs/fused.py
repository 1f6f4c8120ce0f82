"""The layers that many cases share; what differs between cases is in their `forward`."""

from torch import nn


class Fused(nn.Module):
    """One layer makes queries, keys and values, one joins the heads; `wrong` turns the bug on."""

    bias = True  # of both layers

    def __init__(self, width: int, heads: int, wrong: bool = False) -> None:
        super().__init__()
        self.heads, self.wrong = heads, wrong
        self.inner = nn.Linear(width, 3 * width, bias=self.bias)
        self.outer = nn.Linear(width, width, bias=self.bias)
