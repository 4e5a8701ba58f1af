"""The search for bandwidth scale, lam and eta: inside its bounds, each data set by itself."""

import pytest
import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.app.models.outcome import edge_notes
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.search import Edge, Space, search, search_ridge
from kbr.core.filters.kernel.choosing.validation import block_errors
from kbr.core.filters.kernel.settings import Settings
from kbr.core.filters.sequences import Sequences

USUAL = {"scales": (1.0, 0.5, 2.0), "lams": (1e-3, 1e-2, 1e-1)}
WIDE = {"lam_bounds": (1e-9, 1e3)}


def bowl(scale, lam, seen=None):
    """Errors with their least one at a data set's own (scale, lam), as rows of the search."""

    def row_of(members, at):
        def row(tried):
            if seen is not None:
                seen.append((at, sorted(set(tried.flatten().tolist()))))
            octaves = (at / scale[members]).log2().square().unsqueeze(-1)
            decades = (tried / lam[members].unsqueeze(-1)).log10().square()
            return (1 + octaves + decades).unsqueeze(-2)

        return row

    return row_of


def places(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_every_data_set_finds_its_own_place_inside():
    """Optima far from the start are found in few rows, in a batch as alone."""
    scale, lam = places(0.0625, 0.7, 1.0, 2.8, 16.0, 0.125), places(1e-2, 1e-6, 1, 1e-3, 1e-8, 10.0)
    together = search(bowl(scale, lam), Space(**USUAL, **WIDE), torch.zeros_like(scale))
    torch.testing.assert_close(together.scale, scale)
    torch.testing.assert_close(together.lam, lam)
    for i in range(len(scale)):
        seen = []
        row_of = bowl(scale[[i]], lam[[i]], seen)
        alone = search(row_of, Space(**USUAL, **WIDE), scale.new_zeros(1))
        assert float(alone.scale) == float(together.scale[i])
        assert float(alone.lam) == float(together.lam[i])
        assert len({at for at, _ in seen}) <= 10


def test_values_that_are_given_are_the_only_ones():
    seen = []
    space = Space(scales=(1.0, 2.0), lams=(1e-3, 1e-2), scale_bounds=None)
    found = search(bowl(places(0.1), places(10.0), seen), space, places(0.0))
    assert seen == [(1.0, [1e-3, 1e-2]), (2.0, [1e-3, 1e-2])]
    assert (float(found.scale), float(found.lam)) == (1.0, 1e-2)


def test_flat_errors_and_errors_that_are_not_finite_do_not_carry_the_search_away():
    def flat(members, at):
        return lambda lam: torch.full((len(members), 1, lam.shape[-1]), 0.5, dtype=lam.dtype)

    def broken(members, at):
        return lambda lam: torch.where(lam.unsqueeze(-2) < 5e-3, torch.nan, 1.0 / lam.unsqueeze(-2))

    space = Space(**USUAL, **WIDE)
    assert float(search(flat, space, places(0.0)).scale) == 1.0
    assert float(search(flat, space, places(0.0)).lam) == 0.1  # of level ones the largest
    assert float(search(broken, space, places(0.0)).lam) == pytest.approx(1e3)


@pytest.mark.parametrize("low", [1e-12, 1e-8])
def test_the_ridge_of_the_least_score(low):
    at = places(1e-7, 10**-4.5, 0.3, low)

    def score(eta):
        return (eta.squeeze(-1) / at).log10().square() - 3

    found = search_ridge(score, torch.zeros_like(at), (low, 1.0))
    assert (found / at).log10().abs().max() <= 0.26
    level = search_ridge(lambda eta: 0 * eta.squeeze(-1) - 3, torch.zeros_like(at), (low, 1.0))
    assert bool((level == 1.0).all())  # where nothing is lost, the larger one


def test_lams_share_the_factors(monkeypatch):
    data = Rotation().generate(n_train=60, n_test=1, seed=0)
    data = Sequences(data.x_train.unsqueeze(0), data.z_train.unsqueeze(0), [60])
    block = range(40, 60)
    builder = Builder(Settings(eta=1e-3))
    calls = []
    for name in ("latents", "update"):
        monkeypatch.setattr(Builder, name, counted(getattr(Builder, name), name, calls))
    row = block_errors(builder, data.outside(block), data.inside(block), 1.0)
    first = row(places(1e-4, 1e-3).unsqueeze(0))
    again = row(places(1e-3, 1e-2, 1e2).unsqueeze(0))
    assert calls == ["latents", "update"]
    torch.testing.assert_close(first[..., 1], again[..., 0])


def counted(function, name, calls):
    def call(*args, **options):
        calls.append(name)
        return function(*args, **options)

    return call


def test_bandwidths_far_from_the_median_are_found():
    """Two rooms far apart: the median distance says nothing about the turn inside each."""
    data = Rotation().generate(n_train=240, n_test=60, seed=1000)
    room = 60.0 * (torch.arange(300) // 40 % 2).unsqueeze(-1)
    x = torch.cat([data.x_train, data.x_test]) + room
    z = torch.cat([data.z_train, data.z_test]) + room
    grid = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
    found, fixed = (
        KernelBayesFilter(scales=scales).tune(x[:240], z[:240], in_order=True)
        for scales in (None, grid)
    )
    assert float(found.scale_z) < 0.2
    assert float(found.val_mse) < 0.92 * float(fixed.val_mse)
    assert found.edges == ()


def test_an_edge_names_its_key():
    data = Rotation().generate(n_train=90, n_test=1, seed=0)
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = KernelBayesFilter(rule=rule, scales=(3.0, 9.0), etas=(0.1, 1.0))
    choice = filt.fit(data.x_train, data.z_train).choice
    expected = Edge(name="scale", end="lower", value=3.0, count=1, of=1)
    assert choice.edges[0] == expected
    assert [edge.setting for edge in choice.edges] == ["scales", "etas"]
    notes = edge_notes([expected, expected], "model")
    assert notes == ("scale at the lower edge (3) in 2 of 1; try others with model.scales=[...]",)
