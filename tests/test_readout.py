"""The readout filter: its regression by hand, the rows it draws, its filter, its file."""

from functools import partial

import pytest
import torch
from bumps import seen, turning

from kbr.core.datasets.dynamics import Rotation
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing import held_out
from kbr.core.filters.kernel.choosing.validation import held_out_block
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.units.units import Units
from kbr.training import MLP, LearnedFilter, ReadoutFilter
from kbr.training.modules.readout import ReadoutModule

ENCODER = partial(MLP, n_features=8, hidden=(32,))
QUIET = {"enable_progress_bar": False, "logger": False}


@pytest.fixture(scope="module")
def data():
    return turning()


@pytest.fixture(scope="module")
def fitted(data):
    x, z = data
    filt = ReadoutFilter(encoder=ENCODER, epochs=120, val_every=40, lr=1e-2)
    return filt.fit(list(x[:5]), list(z[:5]), trainer=QUIET)


def module(**settings):
    return ReadoutModule(encoder=ENCODER, shape=(12,), dz=2, **settings)


def test_readout_is_ridge_regression_of_standardised_latents(data):
    psi, z = torch.randn(60, 5, dtype=torch.float64), data[1].flatten(0, 1)[:60] + 3.0
    one = module(lam=0.01).double()
    one.fit_scales(data[0].flatten(0, 1)[:60], z)
    target = (z - z.mean(0)) / z.std(0, correction=0)
    want = torch.linalg.solve(psi.mT @ psi + 0.6 * torch.eye(5).double(), psi.mT @ target)
    torch.testing.assert_close(one.readout(psi, z), want, rtol=1e-5, atol=1e-6)


def test_a_step_draws_its_rows_by_seed_and_epoch():
    assert module(batch=None).drawn(100) is None
    assert module(batch=200).drawn(100) is None
    first, again = module(batch=30, seed=1).drawn(100), module(batch=30, seed=1).drawn(100)
    assert torch.equal(first, again)
    assert not torch.equal(first, module(batch=30, seed=2).drawn(100))


def test_filter_is_better_than_each_observation_by_itself(fitted, data):
    x, z = (rows[5:] for rows in data)
    told, found = fitted.readout(x), fitted.filter(x)
    alone, filtered = (float((m - z).square().sum(-1).mean()) for m in (told, found.mean))
    assert alone < 0.35  # two coordinates with noise of .3 each have .18
    assert filtered < 0.7 * alone
    assert 0.75 < float(fitted.credible_region(found).contains(z).double().mean()) < 0.99


def test_what_the_kernel_sees_has_errors_of_size_one(fitted, data):
    """On the rows that the network has not seen: the end of the training sequences."""
    x, z = (rows[:5].flatten(0, 1) for rows in data)
    cut = fitted.held_out_from([60] * 5)
    shown = fitted._features(fitted.units.observations(x[cut:]))
    exact = fitted._white(fitted._get().targets(fitted.units.z.apply(z[cut:])))
    second = (shown - exact).mT @ (shown - exact) / len(shown)
    torch.testing.assert_close(second, torch.eye(2).double(), atol=1e-3, rtol=1e-3)


def test_steps_and_files_give_the_same_beliefs(fitted, data, tmp_path):
    x = data[0][5]
    whole, belief = fitted.filter(x), fitted.init()
    for row in x[:10]:
        belief = fitted.step(belief, row)
    torch.testing.assert_close(belief.mean, whole.mean[9], atol=1e-6, rtol=0)
    fitted.save(tmp_path / "filter.ckpt")
    again = ReadoutFilter.load(tmp_path / "filter.ckpt").filter(x)
    torch.testing.assert_close(again.mean, whole.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(again.cov, whole.cov, atol=1e-9, rtol=0)


def test_whole_sequences_are_held_out_of_many_rows():
    filt = ReadoutFilter(encoder=ENCODER)
    assert filt.held_out_from([200] * 20) == 17 * 200
    assert filt.held_out_from([100] * 5) == 500 - 500 // 3


@pytest.mark.parametrize(
    "settings", [{"lam": 0.0}, {"batch": 0}, {"history": 0}, {"engine": "quick"}, {"chunk": 0}]
)
def test_a_wrong_setting_is_named(settings):
    with pytest.raises(KbrError, match=next(iter(settings))):
        ReadoutFilter(encoder=ENCODER, **settings)


def test_units_are_kept(fitted):
    assert isinstance(fitted.units, Units)
    assert fitted.chosen["scale_x"] > 0


@pytest.mark.parametrize("kind", [LearnedFilter, ReadoutFilter])
def test_the_kernel_filter_is_tuned_on_sequences_the_network_has_not_seen(kind, monkeypatch):
    """Of many sequences: those at the end, for both."""

    class Tuning(Exception):
        pass

    def choose(self, data, **options):
        raise Tuning(data)

    monkeypatch.setattr(KernelBayesFilter, "_choose", choose)
    generator = torch.Generator().manual_seed(1000)
    z = Rotation().latents(350, generator, (6,))
    filt = kind(encoder=ENCODER, epochs=2, val_every=2)
    with pytest.raises(Tuning) as tuned:
        filt.fit(list(seen(z, generator)), list(z), trainer=QUIET)
    (data,) = tuned.value.args
    cut = filt.held_out_from([350] * 6)
    assert cut == 1750
    assert held_out_block(data.lengths).start == cut
    middle = z[-1].mean(0), data.z[cut:].mean(0)
    scale = z.reshape(-1, 2).std(0)
    torch.testing.assert_close(
        data.z[cut:] - middle[1],
        (z[-1] - middle[0]) * (data.z[cut:].std(0) / z[-1].std(0)),
        rtol=1e-3,
        atol=float(1e-3 * scale.max()),
    )


def test_smoothing_is_measured_where_filtering_was(tmp_path, monkeypatch):
    """Features that have seen the first block: it is not held out, from a file neither."""
    asked, own = [], held_out._held_out
    data = Rotation().generate(n_train=90, n_test=1, seed=1000)
    filt = KernelBayesFilter(scales=(1.0,), eta=1e-4, lams=(1e-3,)).fit(data.x_train, data.z_train)

    def spy(fitted, *, first_too):
        asked.append(first_too)
        return own(fitted, first_too=first_too)

    monkeypatch.setattr(held_out, "_held_out", spy)
    for first_too in (True, False):
        one = KernelBayesFilter.of(held_out.measured(filt.fitted, first_too=first_too))
        one.save(tmp_path / "filter.ckpt")
        assert KernelBayesFilter.load(tmp_path / "filter.ckpt").smoothing_calibration is not None
    assert asked == [True, True, False, False]


def test_velocities_are_no_part_of_the_answer_whatever_the_units(data, tmp_path):
    x, z = data
    filt = ReadoutFilter(encoder=ENCODER, epochs=2, val_every=2, velocity=True)
    filt.fit(list(x[:5]), list(z[:5]), units=Units.none(z), trainer=QUIET)
    out = filt.filter(x[5:])
    assert out.mean.shape == z[5:].shape
    assert out.cov.shape == (*z[5:].shape, 2)
    filt.save(tmp_path / "filter.ckpt")
    again = ReadoutFilter.load(tmp_path / "filter.ckpt").filter(x[5:])
    torch.testing.assert_close(again.cov, out.cov)
