"""Bandwidths for every coordinate: against one bandwidth on scaled points, in rules and filters."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from kbr import (
    Embedding,
    Gaussian,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
    Linear,
    Matern32,
    PerCoordinate,
    RandomFourier,
    load_filter,
)
from kbr.app.config.resolvers import CONFIGS
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.kernels import median_distance


def points(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


UNITS = torch.tensor([1.0, 1e3, 1e-4], dtype=torch.float64)


@pytest.mark.parametrize("base", [Gaussian, Matern32])
def test_it_is_the_kernel_on_scaled_points(base):
    a, b = points(0, 12, 3), points(1, 5, 3)
    width = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    wide = PerCoordinate(kernel=base(), bandwidth=width)
    torch.testing.assert_close(wide(a, b), base(bandwidth=1.0)(a / width, b / width))
    torch.testing.assert_close(wide.anchored(b)(a), wide(a, b))
    listed = PerCoordinate(kernel=base(), bandwidth=[0.5, 1.0, 3.0])
    torch.testing.assert_close(listed(a, b), wide(a, b))


def test_the_median_rule_is_that_of_each_coordinate_and_forgets_units():
    a, b = points(0, 2, 40, 3), points(1, 2, 5, 3)
    made = PerCoordinate(scale=torch.tensor([1.0, 2.0])).fit(a)
    for batch, scale in enumerate((1.0, 2.0)):
        for j in range(3):
            alone = scale * 3**0.5 * median_distance(a[batch, :, j : j + 1])
            torch.testing.assert_close(made.bandwidth[batch, j], alone)
    other = PerCoordinate(scale=torch.tensor([1.0, 2.0])).fit(UNITS * a)
    torch.testing.assert_close(other(UNITS * b, UNITS * a), made(b, a))


def test_random_features_have_the_bandwidths():
    a = points(0, 2, 30, 3) * UNITS
    made = RandomFourier(kernel=PerCoordinate(), n_features=4096).fit(a)
    assert (made.train @ made.train.mT - made.kernel(a, a)).abs().max() < 0.08


def test_a_rule_does_not_mind_units():
    x, z = points(0, 60, 3), points(1, 60, 2)
    prior = Embedding.from_samples(points(2, 30, 2))
    rule = ImportanceWeightedRule(kernel_x=PerCoordinate(), lam=0.1)
    plain = rule.fit(x, z).posterior(x[:4], prior)
    units = rule.fit(UNITS * x, z).posterior(UNITS * x[:4], prior)
    torch.testing.assert_close(units.weights, plain.weights, rtol=0, atol=1e-8)


@pytest.fixture(scope="module")
def data():
    return Oscillatory().generate(n_train=150, n_test=40, seed=0)


def fitted(data, kernel, factor=1.0):
    """Not standardised, as the user passes them: if they were, one bandwidth would do."""
    rule = ImportanceWeightedRule(kernel_x=kernel)
    settings = {"scales": (0.7, 1.4), "lams": (1e-3, 1e-2), "standardize": False}
    filt = KernelBayesFilter(rule=rule, correction=None, **settings)
    return filt.fit(factor * data.x_train.double(), data.z_train)


def test_a_filter_tunes_saves_and_loads_it(data, tmp_path):
    units = torch.tensor([1.0, 100.0], dtype=torch.float64)
    x = data.x_test.double()
    plain, made = fitted(data, PerCoordinate()), fitted(data, PerCoordinate(), units)
    mean = made.filter(units * x).mean
    torch.testing.assert_close(mean, plain.filter(x).mean, rtol=0, atol=1e-5)
    blind = fitted(data, Gaussian(), units).filter(units * x).mean
    truth = data.z_test.double()
    assert (mean - truth).square().mean() < (blind - truth).square().mean()
    made.save(tmp_path / "filter.pt")
    again = load_filter(tmp_path / "filter.pt")
    assert isinstance(again.rule.kernel_x, PerCoordinate)
    torch.testing.assert_close(again.filter(units * x).mean, mean, rtol=0, atol=1e-12)
    small = made.compress(60)
    small.save(tmp_path / "small.pt")
    back = load_filter(tmp_path / "small.pt").filter(units * x).mean
    torch.testing.assert_close(back, small.filter(units * x).mean, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PerCoordinate(kernel=Linear()), "stationary"),
        (lambda: PerCoordinate(kernel=Gaussian(bandwidth=1.0)), "without a bandwidth"),
        (lambda: PerCoordinate(bandwidth=2.0), "list of numbers"),
        (lambda: PerCoordinate(bandwidth=[1.0, -1.0]), "greater than zero"),
        (lambda: PerCoordinate(bandwidth=[1.0, 1.0]).fit(points(0, 5, 3)), "each of the 3"),
    ],
)
def test_errors_say_what_to_change(make, words):
    with pytest.raises(KbrError, match=words):
        make()


def test_the_command_line_builds_it(monkeypatch):
    monkeypatch.setenv("KBR_RUN_ID", "test")
    overrides = [
        "data=oscillatory",
        "model=iw",
        "+model.rule.kernel_x._target_=kbr.PerCoordinate",
        "+model.rule.kernel_z={_target_: kbr.PerCoordinate, bandwidth: [0.5, 0.7]}",
    ]
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        method = instantiate(compose(config_name="train", overrides=overrides).model)
    assert isinstance(method.rule.kernel_x, PerCoordinate)
    torch.testing.assert_close(method.rule.kernel_z.bandwidth.tolist(), [0.5, 0.7])
