"""Refined filters: exact gradients, nothing worse than the start, streaming equal to batch."""

import pytest
import torch

from kbr import KbrError, KernelBayesFilter, Linear
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.filters.refined.descent import (
    descend,
    held_out_error,
    make_problem,
    with_values,
)
from kbr.core.filters.refined.filter import RefinedFilter, trial_state
from kbr.core.filters.sequences import lengths_outside, pieces_inside
from kbr.core.rules import ImportanceWeightedRule

SMALL = {"scales": (0.7, 1.4), "lams": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def data():
    made = [Oscillatory().generate(n_train=90, n_test=20, seed=seed) for seed in (50, 51)]
    names = ("x_train", "z_train", "x_test", "z_test")
    return [torch.stack([getattr(one, name) for one in made]) for name in names]


@pytest.fixture(scope="module")
def tuned(data):
    return KernelBayesFilter(**SMALL).fit(data[0], data[1])


@pytest.fixture(scope="module")
def refined(data):
    base = KernelBayesFilter(**SMALL)
    return RefinedFilter(base=base, steps=4).fit(data[0], data[1])


def test_the_gradient_through_the_unrolled_filter_is_that_of_finite_differences(tuned):
    problem = make_problem(tuned.fitted, rank=12)
    moved = [torch.zeros_like(value).requires_grad_() for value in vars(problem.start).values()]
    problem.error(problem.values(moved), range(30, 45)).sum().backward()
    step = 1e-5
    for which, value in enumerate(moved):
        for entry in range(value.numel()):
            found = []
            for sign in (-1, 1):
                shifted = [other.detach().clone() for other in moved]
                shifted[which].view(-1)[entry] += sign * step
                with torch.no_grad():
                    found.append(problem.error(problem.values(shifted), range(30, 45)).sum())
            slope = (found[1] - found[0]) / (2 * step)
            torch.testing.assert_close(value.grad.view(-1)[entry], slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rate", [0.1, 3.0])
def test_refining_never_ends_above_the_validation_error_it_began_with(tuned, rate):
    """A rate far too large moves values anywhere: the start is kept."""
    made = descend(tuned.fitted, steps=3, rate=rate)
    problem = make_problem(tuned.fitted)
    start = with_values(problem, [torch.zeros_like(v) for v in vars(problem.start).values()])
    before, after = held_out_error(start), held_out_error(made)
    assert bool((after <= before * (1 + 1e-6)).all())
    torch.testing.assert_close(made.data.choice.val_mse, after)


def test_a_refined_filter_is_an_ordinary_one(data, tmp_path):
    x, z, x_test, _ = (part[0] for part in data)
    fitted = KernelBayesFilter(**SMALL).fit(x, z).fitted
    made = KernelBayesFilter.of(descend(fitted, steps=3))
    made.save(tmp_path / "filter.pt")
    again = KernelBayesFilter.load(tmp_path / "filter.pt")
    torch.testing.assert_close(again.filter(x_test).mean, made.filter(x_test).mean)
    assert made.compress(30).operators.n <= 30


def test_data_sets_refined_together_are_those_refined_alone(data, tuned):
    together = descend(tuned.fitted, steps=3).data.choice
    one = KernelBayesFilter(**SMALL).fit(data[0][1], data[1][1]).fitted
    alone = descend(one, steps=3).data.choice
    torch.testing.assert_close(together.lam[1], alone.lam, rtol=1e-3, atol=0)


def test_streaming_equals_batch_also_where_observations_are_missing(data, refined):
    x = data[2].clone()
    x[:, 7] = torch.nan
    result, belief = refined.filter(x), refined.init()
    for t in range(x.shape[1]):
        belief = refined.step(belief, x[:, t])
        torch.testing.assert_close(belief.mean, result.mean[:, t])
        torch.testing.assert_close(belief.cov, result.cov[:, t])
    assert belief.steps == x.shape[1]


def test_a_state_gives_the_same_filter_again(data, refined):
    again = RefinedFilter.from_state(refined.state())
    torch.testing.assert_close(again.filter(data[2]).mean, refined.filter(data[2]).mean)


def test_a_file_from_before_filters_held_their_correction_gives_the_same_filter(data, refined):
    state = refined.state()
    inner = {key: value for key, value in state["filter"].items() if key != "correction"}
    del inner["settings"]["correction"]
    readout = refined.state()["filter"]["correction"]
    again = RefinedFilter.from_state({"filter": inner, "readout": readout})
    torch.testing.assert_close(again.filter(data[2]).mean, refined.filter(data[2]).mean)
    alone = RefinedFilter.from_state(trial_state({"filter": inner, "readout": readout}, 1))
    together = refined.filter(data[2]).mean[1]
    torch.testing.assert_close(alone.filter(data[2][1]).mean, together, rtol=0, atol=1e-7)


def test_blocks_cut_sequences_where_they_lie():
    assert lengths_outside([10, 10], range(5, 12)) == [5, 8]
    assert pieces_inside([10, 10], range(5, 12)) == [(5, 10), (10, 12)]
    assert lengths_outside([10], range(10)) == []


def test_mistakes_are_named(data):
    x, z = data[0][0], data[1][0]
    with pytest.raises(KbrError, match="not fitted"):
        RefinedFilter().filter(x)
    with pytest.raises(KbrError, match="steps"):
        RefinedFilter(steps=-1)
    linear = KernelBayesFilter(rule=ImportanceWeightedRule(kernel_x=Linear()), **SMALL).fit(x, z)
    with pytest.raises(KbrError, match="kernel_x"):
        descend(linear.fitted)
    with pytest.raises(KbrError, match="no refined filter"):
        RefinedFilter.from_state({})


def test_one_trial_of_a_batch_is_that_trial(data, refined):
    """What `load_filter` takes out of a run's checkpoint."""
    alone = RefinedFilter.from_state(trial_state(refined.state(), 1))
    together = refined.filter(data[2]).mean[1]
    torch.testing.assert_close(alone.filter(data[2][1]).mean, together, rtol=0, atol=1e-7)
    assert alone.shape == (2,)
