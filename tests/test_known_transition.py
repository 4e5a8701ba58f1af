"""The filter with the true predictive ratio: its table, and that it filters."""

import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio


def test_table_is_the_ratio_of_densities():
    """Each entry against the Gaussian density, written out."""
    task = Oscillatory()
    z = task.latents(12, torch.Generator().manual_seed(0))
    table = TransitionRatio(model=task.state_space()).table(z)
    density = torch.empty(12, 12, dtype=torch.float64)
    for i in range(12):
        for j in range(12):
            error = z[i] - task.step_mean(z[j])
            density[i, j] = torch.exp(-error.square().sum() / (2 * task.sigma_z**2))
    torch.testing.assert_close(table, density / density.mean(-1, keepdim=True))


def test_known_dynamics_filter_better_than_no_filter():
    task = Oscillatory()
    data = task.generate(n_train=200, n_test=100, seed=1)
    rule = ImportanceWeightedRule(ratio=TransitionRatio(model=task.state_space()))
    filt = KernelBayesFilter(rule=rule, scales=(1.0, 2.0), lams=(1e-3, 1e-2))
    error = (filt.fit(data.x_train, data.z_train).filter(data.x_test).mean - data.z_test).square()
    raw = (data.x_test - data.z_test).square()
    assert error.sum(-1).mean() < 0.9 * raw.sum(-1).mean()
    smooth = (filt.smooth(data.x_test).mean - data.z_test).square()
    assert smooth.sum(-1).mean() < error.sum(-1).mean()


def test_batch_and_streaming_agree_with_one_sequence():
    task = Oscillatory()
    data = task.generate(n_train=60, n_test=8, seed=2, batch=(2,))
    rule = ImportanceWeightedRule(ratio=TransitionRatio(model=task.state_space()), lam=1e-2)
    both = KernelBayesFilter(rule=rule, scales=(1.0,)).fit(data.x_train, data.z_train)
    one = KernelBayesFilter(rule=rule, scales=(1.0,)).fit(data.x_train[1], data.z_train[1])
    expected = both.filter(data.x_test).mean[1]
    torch.testing.assert_close(one.filter(data.x_test[1]).mean, expected)
    belief = one.init()
    for x in data.x_test[1]:
        belief = one.step(belief, x)
    torch.testing.assert_close(belief.mean, expected[-1])
