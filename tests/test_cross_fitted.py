"""The cross-fitted filter: who has seen which rows, its readouts by hand, its stream, its file."""

import copy
from functools import partial

import pytest
import torch
from bumps import turning

from kbr import load_filter
from kbr.core.errors import KbrError
from kbr.training import MLP, CrossFittedFilter
from kbr.training.modules.cross_fitted import CrossFittedModule

ENCODER = partial(MLP, n_features=8, hidden=(32,))
QUIET = {"enable_progress_bar": False, "logger": False}


@pytest.fixture(scope="module")
def data():
    return turning()


@pytest.fixture(scope="module")
def fitted(data):
    x, z = data
    filt = CrossFittedFilter(encoder=ENCODER, epochs=60, val_every=30, lr=1e-2, noise=0.1)
    return filt.fit(list(x[:5]), list(z[:5]), trainer=QUIET)


def test_readouts_are_those_of_ridge_regressions_without_a_block():
    """Row by row in plain loops: blocks of 4 of 12 rows, two features for each of three folds."""
    generator = torch.Generator().manual_seed(1000)
    psi = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    z = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    one = CrossFittedModule(encoder=ENCODER, shape=(12,), dz=2, folds=3, lam=0.1).double()
    one.fit_scales(torch.randn(12, 12, generator=generator), z)
    target = (z - z.mean(0)) / z.std(0, correction=0)
    told, operator = one.cross_read(psi, z)
    new, mean = torch.randn(6, generator=generator, dtype=torch.float64), torch.zeros(2).double()
    for k in range(3):
        own, block = slice(2 * k, 2 * k + 2), range(4 * k, 4 * k + 4)
        a, b = 8 * 0.1 * torch.eye(2).double(), torch.zeros(2, 2).double()
        for i in set(range(12)) - set(block):
            a += torch.outer(psi[i, own], psi[i, own])
            b += torch.outer(psi[i, own], target[i])
        solved = torch.linalg.inv(a) @ b
        mean += new[own] @ solved / 3
        for i in block:
            torch.testing.assert_close(told[i], psi[i, own] @ solved, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(new @ operator, mean, rtol=1e-5, atol=1e-6)


def test_no_network_learns_from_the_rows_of_its_block(data):
    """Other latents in the first block change all networks but the first."""
    x, z = data[0][0], data[1][0]
    mirrored = torch.cat([z[:20].flip(0), z[20:]])
    # The same mean and spread, so that targets elsewhere stay; rounding of sums is all that moves.
    kinds = {"encoder": ENCODER, "epochs": 5, "val_every": 5, "lam": 0.1}
    weights = []
    for latents in (z, mirrored):
        filt = CrossFittedFilter(**kinds).fit(x, latents, trainer=QUIET)
        networks = [filt._get().encoder, *filt._get().others]
        weights.append([torch.cat([p.flatten() for p in net.parameters()]) for net in networks])
    pairs = zip(*weights, strict=True)
    moved = [float((a - b).detach().norm() / a.detach().norm()) for a, b in pairs]
    assert moved[0] < 1e-4
    assert min(moved[1:]) > 1e-3


def test_filter_is_better_than_each_observation_by_itself(fitted, data):
    x, z = (rows[5:] for rows in data)
    told, found = fitted.readout(x), fitted.filter(x)
    alone, filtered = (float((m - z).square().sum(-1).mean()) for m in (told, found.mean))
    assert alone < 0.35  # two coordinates with noise of .3 each have .18
    assert filtered < 0.7 * alone
    assert 0.75 < float(fitted.credible_region(found).contains(z).double().mean()) < 1


def test_steps_and_files_give_the_same_beliefs(fitted, data, tmp_path):
    x = data[0][5].clone()
    x[4] = torch.nan
    whole, belief = fitted.filter(x), fitted.init()
    for row in x[:10]:
        belief = fitted.step(belief, row)
    torch.testing.assert_close(belief.mean, whole.mean[9], atol=1e-6, rtol=0)
    assert not bool(whole.evidence[4])
    fitted.save(tmp_path / "filter.ckpt")
    for again in (load_filter(tmp_path / "filter.ckpt"), copy.deepcopy(fitted)):
        torch.testing.assert_close(again.filter(x).mean, whole.mean, atol=1e-9, rtol=0)


def test_all_rows_are_trained_on():
    assert CrossFittedFilter(encoder=ENCODER).held_out_from([40, 60]) == 100


@pytest.mark.parametrize("settings", [{"folds": 1}, {"folds": 2.5}, {"lam": 0.0}])
def test_a_wrong_setting_is_named(settings):
    with pytest.raises(KbrError, match=next(iter(settings))):
        CrossFittedFilter(encoder=ENCODER, **settings)
