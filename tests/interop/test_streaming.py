"""Tensors written one at a time: what the library reads is what was written, in any order."""

import json

import pytest
import torch
from safetensors.torch import load_file

from attnlab.interop import streaming
from attnlab.interop.folder import FolderError, Tensors

MANY = {
    "flag": torch.tensor([True, False, True]),
    "wide": torch.arange(5, dtype=torch.float64),
    "half": torch.linspace(0, 1, 7).half(),
    "brain": torch.linspace(0, 1, 3).bfloat16(),
    "turned": torch.randn(3, 5).T,
    "number": torch.tensor(7),
    "none": torch.zeros(0, 4),
    "eighth": torch.ones(3).to(torch.float8_e4m3fn),
}


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("most", [10**9, 30, 1])
def test_the_library_reads_what_was_written(tmp_path, most):
    expected = [(name, one.to("meta")) for name, one in MANY.items()]
    streaming.write(tmp_path, expected, reversed(MANY.items()), most)
    paths = sorted(tmp_path.glob("*.safetensors"))
    found = {name: one for path in paths for name, one in load_file(path).items()}
    assert {n: bits(one) for n, one in found.items()} == {n: bits(one) for n, one in MANY.items()}
    for path in paths:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        assert size % 8 == 0
        for name, one in header.items():
            if name != "__metadata__":
                assert one["data_offsets"][0] % MANY[name].itemsize == 0, "where its dtype may"
    assert (len(paths) == 1) == (most == 10**9)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (most < 10**9)
    if index.exists():
        plain = json.loads(index.read_text())
        assert set(plain["weight_map"]) == set(MANY)
        assert plain["metadata"]["total_size"] == sum(one.nbytes for one in MANY.values())
    assert set(Tensors(tmp_path)) == set(MANY)


def test_what_was_expected_and_did_not_come_is_a_mistake_of_ours(tmp_path):
    one = [("a", torch.ones(2))]
    with pytest.raises(AssertionError, match="b was not written"):
        streaming.write(tmp_path, [*one, ("b", torch.ones(1))], one, 10**9)


def test_a_dtype_that_torch_has_no_word_for_is_named():
    with pytest.raises(FolderError, match="x has dtype F4, which is not read; I64, F64, F32"):
        streaming.empty("x", (2, 3), "F4")
