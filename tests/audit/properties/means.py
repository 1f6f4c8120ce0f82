"""A module that adds means, for tests of batches and of padding."""

import torch
from torch import nn


class Mean(nn.Module):
    """Adds the mean of what it sees; `fault` says what it gets wrong."""

    def __init__(self, fault=""):
        super().__init__()
        self.layer, self.fault = nn.Linear(6, 6), fault

    def forward(self, x, key_padding_mask=None):
        y = self.layer(x)
        if self.fault == "batch":
            return y + y.mean(0, keepdim=True)
        pad = key_padding_mask
        if pad is None or self.fault == "ignored":
            pad = torch.zeros(x.shape[:2], dtype=torch.bool)
        if self.fault == "first row for all":
            pad = pad[:1].expand_as(pad)
        hidden = y.masked_fill(pad[..., None], 0)
        counts = torch.arange(1, x.shape[1] + 1) if self.fault == "counted" else (~pad).cumsum(1)
        return y + hidden.cumsum(1) / torch.as_tensor(counts).clamp(min=1).reshape(
            -1, x.shape[1], 1
        )
