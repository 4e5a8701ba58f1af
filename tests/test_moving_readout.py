"""The moving filter on a network's features: its answers, its stream, its file."""

import copy
from functools import partial

import pytest
import torch
from bumps import turning

from kbr import load_filter
from kbr.core.errors import KbrError
from kbr.training import MLP, MovingReadoutFilter

ENCODER = partial(MLP, n_features=8, hidden=(32,))
QUIET = {"enable_progress_bar": False, "logger": False}
OFFSET = 1e6


@pytest.fixture(scope="module")
def data():
    return turning()


@pytest.fixture(scope="module")
def fitted(data):
    x, z = data
    settings = {"epochs": 120, "val_every": 40, "lr": 1e-2, "n_particles": 200}
    filt = MovingReadoutFilter(encoder=ENCODER, **settings)
    return filt.fit(list(x[:5]), list(z[:5] + OFFSET), trainer=QUIET)


def test_filter_is_better_than_each_observation_by_itself(fitted, data):
    x, z = (rows[5:] for rows in data)
    z = z + OFFSET
    told, found = fitted.readout(x), fitted.filter(x)
    alone, filtered = (float((m - z).square().sum(-1).mean()) for m in (told, found.mean))
    assert alone < 0.35  # two coordinates with noise of .3 each have .18
    assert filtered < 0.7 * alone
    assert 0.75 < float(fitted.credible_region(found).contains(z).double().mean()) <= 1


def test_a_stream_answers_as_the_whole_sequence_does(fitted, data):
    x = data[0][6, :8].clone()
    x[4] = torch.nan
    whole, belief = fitted.filter(x), fitted.init()
    for t in range(len(x)):
        belief = fitted.step(belief, x[t])
        torch.testing.assert_close(belief.mean, whole.mean[t], rtol=1e-9, atol=1e-6)
        assert bool(belief.evidence) == bool(whole.evidence[t])
    assert not bool(whole.evidence[4])
    ahead = fitted.forecast(belief, 5)
    assert float(ahead.cov.diagonal().sum()) > float(belief.cov.diagonal().sum())


def test_what_was_saved_answers_the_same(fitted, data, tmp_path):
    x = data[0][7]
    fitted.save(tmp_path / "filter.ckpt")
    for again in (load_filter(tmp_path / "filter.ckpt"), copy.deepcopy(fitted)):
        torch.testing.assert_close(again.filter(x).mean, fitted.filter(x).mean)
        assert again.chosen == fitted.chosen


def test_sensor_of_an_overfitted_network_is_learned_from_frames_it_has_not_seen():
    """Frames of pure noise are learned by heart: seen ones tell z, others do not."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 60, 12, generator=generator, dtype=torch.float64)
    z = torch.randn(5, 60, 1, generator=generator, dtype=torch.float64)
    wide = partial(MLP, n_features=8, hidden=(256,), dropout=0.0)
    settings = {"epochs": 300, "val_every": 300, "batch": None, "n_particles": 100}
    filt = MovingReadoutFilter(encoder=wide, lr=1e-2, **settings)
    filt.fit(list(x), list(z), trainer=QUIET)
    held = filt.held_out_from([60] * 5)
    error = (filt.readout(x) - z).square().flatten()
    assert float(error[:held].mean()) < 0.5 * float(error[held:].mean())
    result = filt.filter(torch.randn(200, 12, generator=generator, dtype=torch.float64))
    truth = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    assert float(filt.credible_region(result).contains(truth).double().mean()) > 0.8
    assert float(result.mean.square().mean()) < 0.5  # it knows that frames tell nothing


def test_summary_and_refusals(fitted):
    text = repr(fitted.summary())
    assert "points that move" in text
    assert max(map(len, text.splitlines())) <= 80
    with pytest.raises(KbrError, match="n_particles"):
        MovingReadoutFilter(n_particles=0)
    with pytest.raises(KbrError, match="no smoother"):
        fitted.smooth(torch.zeros(3, 12))
