"""Tensors as a file in pieces: the bytes that safetensors itself would write."""

import hashlib

import pytest
import safetensors.torch
import torch

from attnlab.training.tensor_file import NAMES, TensorFile

DRAWS = torch.Generator().manual_seed(0)


def of_every_dtype():
    made = {}
    for name in NAMES:
        dtype = getattr(torch, name)
        for part, shape in (("b", (3, 5)), ("a", ()), ("é", (0, 2)), ("c", (7,))):
            made[f"{part}.{name}"] = (torch.randn(shape, generator=DRAWS) * 9).to(dtype)
    return made


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"one": torch.ones(1)},
        {"weight": torch.randn(3, 2, generator=DRAWS), "weight/exp_avg": torch.randn(3, 2)},
        of_every_dtype(),
        {"turned": torch.randn(4, 6, generator=DRAWS).T, "part": torch.arange(9.0)[2:7]},
        {"needs": torch.ones(3, requires_grad=True)},
    ],
)
def test_the_bytes_are_those_of_the_library(tensors):
    plain = {name: one.detach().contiguous() for name, one in tensors.items()}
    wanted, found = safetensors.torch.save(plain), TensorFile(tensors)
    whole = b"".join(found)
    assert len(found) == len(whole) and found.sha256() == hashlib.sha256(whole).hexdigest()
    assert whole == wanted
    back = safetensors.torch.load(whole)
    assert all(torch.equal(back[name], plain[name]) for name in plain)


def test_pieces_are_the_tensors_themselves():
    """Nothing is copied: what takes memory is the model alone."""
    weight = torch.zeros(1000)
    _, piece = TensorFile({"weight": weight})
    weight[3] = 1.0
    assert bytes(piece[12:16]) == torch.ones(1).numpy().tobytes()


def test_writing_ends_between_two_tensors_when_it_is_told_to():
    tensors, calls = {name: torch.ones(2) for name in "abc"}, []

    def heed():
        calls.append(1)
        if len(calls) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        list(TensorFile(tensors, heed))
    with pytest.raises(InterruptedError):
        calls.clear()
        TensorFile(tensors, heed).sha256()


def test_a_dtype_that_no_file_of_ours_has_is_named():
    with pytest.raises(ValueError, match="'spectrum' has dtype complex64, which"):
        TensorFile({"spectrum": torch.zeros(2, dtype=torch.complex64)})
