"""In float64 by name: the same numbers as by looking at every call, or every call is looked at."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.models.llama import modeling_llama  # noqa: E402

from attnlab.audit.hf import models  # noqa: E402
from attnlab.audit.hf.names import files_that_name_it, wide_names  # noqa: E402

NARROW = torch.float32  # a name of one's own for it


def test_the_name_means_float64_in_the_library_alone_and_for_a_while():
    files = files_that_name_it()
    assert modeling_llama in files
    with pytest.raises(KeyError), wide_names(files):
        assert modeling_llama.torch.float32 is modeling_llama.torch.float is torch.float64
        assert modeling_llama.torch.nn is torch.nn
        assert torch.float32 is NARROW
        assert torch.ones(2, dtype=torch.float16).float().dtype is torch.float64
        assert torch.ones(2).dtype is torch.float64
        raise KeyError
    assert modeling_llama.torch is torch
    assert torch.ones(2, dtype=torch.float16).float().dtype is torch.ones(2).dtype is NARROW


def test_a_model_that_names_what_it_asks_for_is_run_by_names():
    assert models.subject_of("llama").convention.names
    assert not models.subject_of("llama").by("eager").convention.names


@pytest.mark.parametrize("narrows", [True, False])
def test_a_model_that_has_another_name_for_it_is_looked_at_call_by_call(monkeypatch, narrows):
    def forward(self, x):
        wide = x.to(NARROW if narrows else torch.float64)
        size = wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (wide * size.rsqrt()).to(x.dtype)

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", forward)
    found = models.subject_of("llama").convention
    assert found.exact and bool(found.names) is not narrows
