"""The checks of shapes see each kind of call, though not each call."""

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from kbr.core.linalg import ridge_solve

ONES = torch.ones(3, 3, dtype=torch.float64)


@jaxtyping.jaxtyped(typechecker=beartype)
def first(x: Float[Tensor, "n d"], wide: list[float]) -> Float[Tensor, "n"]:
    """Returns a wrong shape where the number, not the shape, of `wide` says so."""
    return x[:, : 1 + len(wide)].sum(1) if wide[0] > 0 else x


def test_a_wrong_shape_is_found_after_right_ones():
    for _ in range(3):
        ridge_solve(ONES, ONES, ridge=0.1)
    with pytest.raises(jaxtyping.TypeCheckError):
        ridge_solve(ONES, ONES[:2], ridge=0.1)
    with pytest.raises(jaxtyping.TypeCheckError):
        ridge_solve(ONES, ONES, ridge="0.1")
    ridge_solve(ONES, ONES, ridge=0.1)


def test_a_wrong_answer_is_found_after_right_ones():
    for _ in range(3):
        first(ONES, [1.0])
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            first(ONES, [-1.0])
    assert torch.equal(first(ONES, [1.0]), ONES[:, :2].sum(1))


def test_an_item_of_a_list_is_looked_at():
    first(ONES, [1.0])
    with pytest.raises(jaxtyping.TypeCheckError, match="wide"):
        first(ONES, ["1"])


def test_a_like_call_is_not_looked_at_again():
    """Otherwise most of the suite's time is spent on it."""
    looks = []

    def counting(function):
        def looked(*args, **kwargs):
            looks.append(function.__name__)
            return function(*args, **kwargs)

        return looked

    @jaxtyping.jaxtyped(typechecker=counting)
    def same(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return x

    for _ in range(5):
        same(ONES)
    assert len(looks) == 2  # of the arguments, and of arguments and answer
    same(ONES[:2])
    assert len(looks) == 4
