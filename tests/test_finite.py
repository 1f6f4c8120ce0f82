"""NaN and Inf are found wherever they stand."""

import pytest
import torch

from attnlab import finite
from attnlab.finite import is_finite


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (7, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_numbers_are_finite(shape, dtype, monkeypatch):
    monkeypatch.setattr(finite, "PIECE", 4)
    assert is_finite(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", range(11))
def test_one_that_is_not_is_found_in_every_piece(value, place, monkeypatch):
    monkeypatch.setattr(finite, "PIECE", 4)
    tensor = torch.ones(11, requires_grad=True).detach()
    tensor[place] = value
    assert not is_finite(tensor) and not is_finite(tensor[None].T)
