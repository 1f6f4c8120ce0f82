"""Only what the library's model raises is the model's; an error of ours is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnlab.audit.errors import SubjectError

pytest.importorskip("transformers")

from attnlab.audit.hf import models, running, subject

KINDS = [ValueError, OSError, KeyError]


@pytest.fixture(scope="module")
def llama() -> subject.HuggingFace:
    return models.subject_of("llama")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["positions_behind", "CACHES"])
def test_an_error_of_ours_in_a_step_is_ours(
    llama: subject.HuggingFace,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    kind: type[Exception],
) -> None:
    class Broken:
        def __call__(self, *given: Any) -> Any:
            raise kind("ours")

        items = __iter__ = __call__

    x, cache = llama.draw(2, 5, 0), llama.new_cache()
    monkeypatch.setattr(running, place, Broken())
    with pytest.raises(kind, match="ours"):
        llama.step(x, cache)
    if place == "CACHES":
        with pytest.raises(kind, match="ours"):
            llama.loop_logits(x, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_ours_around_a_call_is_ours(
    llama: subject.HuggingFace, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def broken(*given: Any) -> Any:
        raise kind("ours")

    x, cache = llama.draw(2, 5, 0), llama.new_cache()
    monkeypatch.setattr(subject, "running", broken)
    for call in (
        llama.new_cache,
        lambda: llama.run(x),
        lambda: llama.step(x, cache),
        lambda: llama.loop_logits(x, 3),
    ):
        with pytest.raises(kind, match="ours"):
            call()


@pytest.mark.parametrize(
    "method", ["forward", "prepare_inputs_for_generation", "_supports_default_dynamic_cache"]
)
def test_what_the_model_raises_is_its_own_and_says_where(
    llama: subject.HuggingFace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*given: Any, past_key_values: Any = None, **named: Any) -> Any:
        raise ValueError("of theirs")

    x = llama.draw(2, 5, 0)
    monkeypatch.setattr(llama.convention.code, method, broken)
    with pytest.raises(SubjectError, match=f"raised ValueError in `{method}`.*: of theirs"):
        llama.step(x, llama.new_cache())
    if method == "forward":
        with pytest.raises(SubjectError, match="in `forward` at length 5: of theirs"):
            llama.loop_logits(x, 3)


def test_what_the_library_raises_for_its_cache_is_the_librarys(
    llama: subject.HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def broken(*given: Any, **named: Any) -> Any:
        raise ValueError("of theirs")

    monkeypatch.setattr(transformers, "DynamicCache", broken)
    with pytest.raises(SubjectError, match="raised ValueError in `DynamicCache`: of theirs"):
        llama.new_cache()


def test_a_backend_that_is_refused_is_the_models(
    llama: subject.HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise ValueError("of theirs")

    monkeypatch.setattr(llama.convention.code, "set_attn_implementation", broken)
    with pytest.raises(SubjectError, match="in `set_attn_implementation`: of theirs"):
        llama.by("eager").run(llama.draw(2, 5, 0))
