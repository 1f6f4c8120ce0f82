"""What checks types in the tests, checked: with and without shapes in a signature."""

import dataclasses
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
import typechecker
from jaxtyping import Float
from torch import Tensor

check = typechecker.jaxtyped(typechecker=typechecker.check)


@check
def plain(count: int, names: list[str], then: Callable[[], int] | None = None) -> str:
    return str(count) if names else count  # type: ignore[return-value]


@check
def shaped(x: Float[Tensor, "b t"], y: Float[Tensor, "b t"] | None = None) -> Float[Tensor, " b"]:
    return x.sum(1) if y is None else x.sum(0)


@check
def numbers(upto: int) -> Iterator[int]:
    yield from range(upto)


@check
@dataclasses.dataclass
class Point:
    x: float
    name: str = ""


@check
@dataclasses.dataclass
class Shaped:
    x: Float[Tensor, "b b"]


def test_what_is_right_passes():
    assert plain(3, ["a"]) == "3" and list(numbers(3)) == [0, 1, 2]
    assert Point(1).x == 1, "an int is a float, as in Python"
    assert shaped(torch.ones(2, 3)).shape == (2,) and Shaped(torch.ones(2, 2)).x.sum() == 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: plain("3", ["a"]),
        lambda: plain(3, "a"),
        lambda: plain(3, [1]),
        lambda: plain(3, []),  # which does not return a text
        lambda: list(numbers("3")),
        lambda: Point("1"),
        lambda: Point(1, name=2),
        lambda: shaped(torch.ones(2)),
        lambda: shaped(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: shaped(torch.ones(2, 3), torch.ones(2, 3)),  # returns t of them
        lambda: Shaped(torch.ones(2, 3)),
    ],
)
def test_what_is_wrong_does_not(wrong):
    with pytest.raises(Exception, match=r"(?i)type") as caught:
        wrong()
    module = type(caught.value).__module__
    assert module.startswith(("beartype.", "jaxtyping")), caught.value


def test_it_can_be_left_out(unchecked_shapes):
    assert plain("3", ["a"]) == "3" and plain(3, []) == 3
    assert shaped(torch.ones(2, 3), torch.ones(2, 3)).shape == (3,)
    assert Point("1").x == "1"


@pytest.mark.parametrize(
    ("hint", "without"),
    [
        (int, True),
        (dict[str, list[int | None]], True),
        (Callable[[int], str], True),
        (Tensor, True),
        ("int", False),
        (dict[str, "Tensor"], False),
        (Float[Tensor, " b"], False),
        (list[Float[Tensor, " b"]] | None, False),
        (Callable[[Float[Tensor, " b"]], int], False),
        (tuple[int, Float[Tensor, " b"]], False),
    ],
    ids=str,
)
def test_shapes_are_seen_wherever_they_are(hint, without):
    assert typechecker._is_plain(hint) is without


def test_the_package_is_checked_by_it():
    from attnlab import counter_rng
    from attnlab.kernels import attention

    assert jaxtyping.jaxtyped is typechecker.jaxtyped
    with pytest.raises(Exception, match="violates type hint"):
        counter_rng.number("0", "weights")
    with pytest.raises(jaxtyping.TypeCheckError):
        attention(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 5), torch.ones(1, 1, 3, 5))
