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
    for name in ("running", "wide_names"):  # whichever this model is run by
        monkeypatch.setattr(subject, name, broken)
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


@pytest.mark.parametrize("arch", ["t5", "bart", "m2m_100"])
def test_a_decoder_in_pieces_is_the_whole_text(arch: str) -> None:
    decoder = models.subject_of(arch)
    x, cache = decoder.draw(2, 11, 3), decoder.new_cache()
    pieces = torch.cat([decoder.step(one, cache) for one in x.split((3, 1, 1, 4, 2), 1)], dim=1)
    assert float((pieces - decoder.run(x)).abs().max()) < 1e-12


def test_outputs_of_a_decoder_move_with_the_encoders_text_up_to_its_padding() -> None:
    source = models.subject_of("t5").part_for("encoder padding")
    x, padding = source.draw(2, 7, 3), torch.tensor([[False] * 5 + [True] * 2] * 2)
    other = x.clone()
    other[:, 6] += 1
    far = source.run(other, padding=padding) - source.run(x, padding=padding)
    near = source.run(other) - source.run(x)
    assert not far.any() and bool((near.abs().amax(-1) > 1e-6).all())


def test_input_j_is_patch_j_of_the_picture() -> None:
    x = torch.arange(2 * 9 * 12.0).reshape(2, 9, 12)
    found = torch.nn.functional.unfold(running.pixels(x, 3, 2), 2, stride=2)
    assert torch.equal(found.transpose(1, 2), x)


def test_rows_before_the_patches_are_left_out() -> None:
    vit = models.subject_of("vit")
    assert (vit.convention.skip, vit.block) == (1, 144)
    assert vit.run(vit.draw(2, 5, 0)).shape == (2, 5, 32)
