"""What the user passes and gets back: names, units, angles, time, priors, copies, settings."""

import copy
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from kbr import (
    Embedding,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
)
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.refined.filter import RefinedFilter
from kbr.core.filters.training_data import training_data

FIXED = {"rule": ImportanceWeightedRule(lam=1e-2), "eta": 1e-3, "scales": (0.7,)}
UNITS = np.array([1e-4, 1e6])  # volts and pascals
OFFSET = np.array([3.0, 5e6])


def rows(n=240, seed=1000):
    made = Rotation().generate(n_train=n, n_test=60, seed=seed)
    parts = (made.x_train, made.z_train, made.x_test, made.z_test)
    return tuple(part.double().numpy() for part in parts)


def heading(z):
    return np.degrees(np.arctan2(z[:, 1], z[:, 0])) % 360


def table(x, **more):
    return pd.DataFrame({"volts": x[:, 0] * UNITS[0], "pressure": x[:, 1] * UNITS[1], **more})


@pytest.mark.parametrize(
    "model", [KernelBayesFilter, lambda **s: RefinedFilter(base=KernelBayesFilter(**s), steps=1)]
)
def test_units_and_offsets_of_the_data_are_those_of_the_answer(model):
    """The filter of other units is the same filter, to 1e-9 of its answers' spread."""
    x, z, x_test, _ = rows()
    plain = model(**FIXED).fit(x, z)
    other = model(**FIXED).fit(x * UNITS + OFFSET, z * UNITS + OFFSET)
    for run in ("filter", "smooth"):
        found = getattr(other, run)(x_test * UNITS + OFFSET)
        truth = getattr(plain, run)(x_test)
        shift, scale = torch.as_tensor(OFFSET), torch.as_tensor(UNITS)
        torch.testing.assert_close((found.mean - shift) / scale, truth.mean, rtol=0, atol=1e-5)
        for name in ("cov", "raw_cov"):
            inner = getattr(found, name) / torch.outer(scale, scale)
            torch.testing.assert_close(inner, getattr(truth, name), rtol=0, atol=1e-5)
    streamed = other.init()
    for row in x_test * UNITS + OFFSET:
        streamed = other.step(streamed, row)
    batch = other.filter(x_test * UNITS + OFFSET)
    torch.testing.assert_close(streamed.mean, batch.mean[-1], rtol=1e-9, atol=0)
    torch.testing.assert_close(streamed.cov, batch.cov[-1], rtol=1e-9, atol=0)


def test_standardising_is_the_default_and_can_be_turned_off():
    """Two columns with units far apart: only a filter that standardises uses both."""
    x, z, x_test, z_test = rows()
    wide = np.array([1.0, 1e4])
    errors = {}
    for standardize in (None, False):
        filt = KernelBayesFilter(**FIXED, standardize=standardize, correction=None)
        filt.fit(x * wide, z)
        mean = filt.filter(x_test * wide).mean.numpy()
        errors[standardize] = np.square(mean - z_test).sum(-1).mean()
    assert errors[None] < 0.5 * errors[False]
    as_is = KernelBayesFilter(**FIXED, standardize=False).fit(x, z)
    assert as_is.units.x.scale.ndim == 0


def test_tables_are_read_by_name_in_any_order():
    x, z, x_test, _ = rows()
    states = pd.DataFrame({"east": z[:, 0], "north": z[:, 1]})
    filt = KernelBayesFilter(**FIXED).fit(table(x), states)
    assert filt.units.x_names == ("volts", "pressure")
    assert filt.units.z_names == ("east", "north")
    new = table(x_test, note=["text"] * len(x_test))[["note", "pressure", "volts"]]
    truth = filt.filter(x_test * UNITS).mean
    torch.testing.assert_close(filt.filter(new).mean, truth)
    belief = filt.step(filt.init(), {"pressure": new["pressure"][0], "volts": new["volts"][0]})
    torch.testing.assert_close(belief.mean, truth[0])
    torch.testing.assert_close(filt.step(filt.init(), new.iloc[0]).mean, truth[0])
    with pytest.raises(KbrError, match=r"x has no column 'volts'.*trained on volts, pressure"):
        filt.filter(new[["pressure"]])
    with pytest.raises(KbrError, match="column 'volts' must hold numbers"):
        filt.filter({**new, "volts": ["low"] * len(new)})


@pytest.mark.parametrize("unit", ["degrees", "radians"])
def test_an_angle_has_no_jump_at_a_full_turn(unit):
    x, z, x_test, z_test = rows()
    turn = 360 if unit == "degrees" else 2 * np.pi
    truth, test = (heading(part) / 360 * turn for part in (z, z_test))
    states = pd.DataFrame({"yaw": truth})
    settings = {"circular": "yaw", "angle_unit": unit}
    filt = KernelBayesFilter(**FIXED).fit(x, states, **settings)
    out = filt.filter(x_test)
    assert ((out.mean >= 0) & (out.mean < turn)).all()
    off = (out.mean[:, 0].numpy() - test + turn / 2) % turn - turn / 2
    assert np.abs(off).mean() < 0.05 * turn
    inside = filt.credible_region(out).contains(
        filt.units.z.nearest(torch.as_tensor(test)[:, None], out.mean)
    )
    assert 0.75 < inside.double().mean() <= 1
    with pytest.raises(KbrError, match=r"circular names 'yew', which is no column.*yaw"):
        KernelBayesFilter(**FIXED).fit(x, states, circular=["yew"])
    if unit == "radians":
        with pytest.warns(UserWarning, match="angle_unit='radians'"):
            KernelBayesFilter(**FIXED).fit(x, states, circular="yaw")


def test_gaps_in_time_cut_sequences_and_uneven_steps_are_said():
    x, z, *_ = rows(90)
    time = 0.1 * np.arange(90.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training_data(x, z, time=time).lengths == [90]
    with pytest.warns(UserWarning, match="1 longer one"):
        cut = training_data(x, z, time=time + 5 * (time > 4.05))
    assert cut.lengths == [41, 49]
    jitter = time + 0.05 * np.random.default_rng(0).uniform(size=90)
    with pytest.warns(UserWarning, match="sampling is irregular"):
        assert training_data(x, z, time=jitter).lengths == [90]  # jitter alone cuts nothing
    dates = pd.Timestamp("2024-05-01") + pd.to_timedelta(time, "s")
    assert training_data(x, z, time=dates).lengths == [90]
    with pytest.raises(KbrError, match="time must grow"):
        training_data(x, z, time=time[::-1])


def test_a_prior_of_ones_own_is_where_the_filter_starts():
    x, z, *_ = rows()
    filt = KernelBayesFilter(**FIXED).fit(x * UNITS, z * UNITS + OFFSET)
    near = (z[:1] + 0.05 * np.random.default_rng(0).normal(size=(50, 2))) * UNITS + OFFSET
    for prior in (near, Embedding.from_samples(near)):
        belief = filt.init(prior=prior)
        assert (np.abs(belief.mean.numpy() - near.mean(0)) < 0.2 * UNITS).all()
        ahead = filt.step(belief, np.full(2, np.nan))
        torch.testing.assert_close(ahead.mean, belief.mean)  # step uses the belief it is given
    ordinary = filt.step(filt.init(), np.full(2, np.nan))
    assert not torch.allclose(ordinary.mean, ahead.mean)
    with pytest.raises(KbrError, match="no training latents"):
        filt.init(prior=near + 100 * UNITS)
    with pytest.raises(KbrError, match=r"shape \[m, dz\]"):
        filt.init(prior=near[:, :1])


def test_settings_are_fixed_when_the_filter_is_made():
    filt = KernelBayesFilter(**FIXED)
    with pytest.raises(KbrError, match=r"scales is fixed.*replace\(filt, scales=...\)"):
        filt.scales = (5.0,)
    x, z, *_ = rows(60)
    assert float(replace(filt, scales=(5.0,)).fit(x, z).choice.scale_z) == 5.0


def test_a_fitted_filter_can_be_copied_and_pickled():
    x, z, x_test, _ = rows(90)
    for filt in (
        KernelBayesFilter(**FIXED),
        RefinedFilter(base=KernelBayesFilter(**FIXED), steps=1),
    ):
        truth = filt.fit(x, z).filter(x_test)
        for made in (pickle.loads(pickle.dumps(filt)), copy.deepcopy(filt)):
            found = made.filter(x_test)
            torch.testing.assert_close(found.mean, truth.mean)
            torch.testing.assert_close(found.cov, truth.cov)


def test_what_is_printed_is_short():
    x, z, x_test, _ = rows(60)
    filt = KernelBayesFilter(**FIXED).fit(x, z)
    out = filt.filter(x_test)
    for value in (filt, out, filt.init(), filt.step(filt.init(), x_test[0])):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
