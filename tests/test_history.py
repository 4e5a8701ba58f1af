"""History of x and velocity of z: what several rows tell, in every way a filter is used."""

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from kbr import KbrError, KernelBayesFilter
from kbr.app.streaming.state import read_belief, save_belief
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.lifting import rates, windows
from kbr.core.filters.refined import RefinedFilter
from kbr.core.filters.training_data import training_data

NAN = float("nan")
LIFTS = [{"history": 3}, {"velocity": True}, {"history": 2, "velocity": True}]
Pair = tuple[Tensor, Tensor]


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def pendulum(n: int, seed: int) -> Pair:
    """The position of a swing, seen with noise: where it goes next is a matter of its velocity."""
    phase = normal(1, seed=seed) * 10 + (0.3 + 0.1 * normal(n, seed=seed + 1)).cumsum(0)
    z = phase.cos().unsqueeze(-1)
    return z + 0.5 * normal(n, 1, seed=seed + 2), z


def speed(n: int, seed: int) -> Pair:
    """The speed of a wheel whose place is seen: one row says nothing about it, two rows do."""
    v, noise = [torch.zeros((), dtype=torch.float64)], normal(n, seed=seed)
    for step in noise:
        v.append(0.9 * v[-1] + 0.15 * step)
    z = torch.stack(v[1:])
    place = z.cumsum(0)
    x = torch.stack([place.cos(), place.sin()], -1)
    return x + 0.05 * normal(n, 2, seed=seed + 1), z.unsqueeze(-1)


def fitted(pair: Pair, **lift: object) -> KernelBayesFilter:
    quick = {"scales": (0.5,), "lams": (1e-3,), "eta": 1e-4}
    return KernelBayesFilter(**quick, **lift).fit(*pair)


def test_a_window_holds_the_last_rows_and_no_others():
    x = torch.tensor([[1.0], [2.0], [NAN], [4.0], [5.0]])
    expected = [[1, 1, 1], [2, 1, 1], [NAN, 2, 1], [4, 4, 2], [5, 4, 4]]
    torch.testing.assert_close(windows(x, 3), torch.tensor(expected), equal_nan=True)
    frames = torch.arange(2 * 3 * 1 * 2 * 2.0).reshape(2, 3, 1, 2, 2)
    stacked = windows(frames, 2, axes=3)
    assert stacked.shape == (2, 3, 2, 2, 2)
    torch.testing.assert_close(stacked[:, 1:, 1], frames[:, :-1, 0])
    torch.testing.assert_close(stacked[:, 0, 1], frames[:, 0, 0])


def test_windows_and_rates_stay_within_their_sequence():
    x, z = pendulum(60, 0)
    filt = fitted(
        ([x[:20], x[20:21], x[21:]], [z[:20], z[20:21], z[21:]]), history=2, velocity=True
    )
    data = filt.fitted.data
    assert data.x.shape == (60, 2)
    for start in (0, 20, 21):
        assert data.x[start, 0] == data.x[start, 1]
    torch.testing.assert_close(data.x[1:20, 1], data.x[:19, 0])
    torch.testing.assert_close(data.z[21, 1], data.z[22, 1])  # the first row: as the second
    step = z.diff(dim=0).squeeze(-1)
    slope = (data.z[30, 1] - data.z[10, 1]) / (step[29] - step[9])
    torch.testing.assert_close(data.z[40, 1] - data.z[10, 1], slope * (step[39] - step[9]))
    torch.testing.assert_close(
        data.z[20, 1] - data.z[10, 1], slope * (0 - step[9])
    )  # one row alone


def test_the_rate_of_an_angle_takes_the_shorter_way_round():
    angle = torch.tensor([350.0, 355, 0, 5, 10, 0, 350, 340], dtype=torch.float64).unsqueeze(-1)
    data = training_data(angle, angle, circular=["z_1"])
    turn = rates(data.z, data.lengths, data.units.z).squeeze(-1)
    torch.testing.assert_close(turn[:5], turn[:1].expand(5))  # 5 degrees a row, also across 0
    torch.testing.assert_close(turn[5:], turn[5:6].expand(3))  # and 10 back
    torch.testing.assert_close(turn.mean(), torch.zeros_like(turn[0]))
    steady = torch.arange(20, dtype=torch.float64).unsqueeze(-1) * 0.1 + 1e6
    data = training_data(steady, steady)
    assert not rates(data.z, data.lengths, data.units.z).any()  # rounding is no rate


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("kind", [KernelBayesFilter, RefinedFilter])
def test_steps_agree_with_filter_and_files_with_memory(lift, kind, tmp_path):
    """In units with an offset, with rows that are missing; and with a forecast for a gap."""
    x, z = speed(90, 0)
    x, z = 1e6 + 100 * x, 1e6 + 3 * z
    base = KernelBayesFilter(scales=(0.5,), lams=(1e-3,), **lift)
    filt = (base if kind is KernelBayesFilter else RefinedFilter(base=base, steps=2)).fit(x, z)
    seen = x[:30].clone()
    seen[7], seen[8, 0], seen[15] = NAN, NAN, NAN
    result, belief = filt.filter(seen), filt.init()
    assert result.mean.shape == (30, 1)
    assert result.cov.shape == (30, 1, 1)
    assert filt.shape == (2,)
    assert not result.evidence[[7, 8, 15]].any()
    assert result.evidence[9:15].all()
    for t, row in enumerate(seen):
        gap = bool(row.isnan().any())
        belief = filt.forecast(belief) if gap and t else filt.step(belief, row)
        torch.testing.assert_close(belief.mean, result.mean[t], rtol=0, atol=1e-9 * 1e6)
        torch.testing.assert_close(belief.cov, result.cov[t], rtol=1e-6, atol=1e-9)
        if t == 16:  # leave, and go on from a file: older rows are still known
            save_belief(belief, tmp_path / "belief", "one")
            belief = read_belief(filt, tmp_path / "belief", "one")
    filt.save(tmp_path / "filter")
    for other in (kind.load(tmp_path / "filter"), pickle.loads(pickle.dumps(filt))):
        torch.testing.assert_close(other.filter(seen).mean, result.mean)
    if kind is KernelBayesFilter and len(lift) == 2:
        smoothed = filt.smooth(seen)
        torch.testing.assert_close(other.smooth(seen).mean, smoothed.mean)
        torch.testing.assert_close(smoothed.mean[-1], result.mean[-1])
        assert smoothed.cov.shape == (30, 1, 1)
    assert filt.credible_region(result).contains(z[:30]).shape == (30,)


def test_a_stated_sequence_begins_without_the_rows_of_the_last():
    x, z = speed(100, 0)
    columns = {"a": x[:, 0].numpy(), "b": x[:, 1].numpy()}
    filt = KernelBayesFilter(scales=(0.5,), lams=(1e-3,), history=2)
    filt.fit(columns, z)
    whole = {name: np.r_[c[:10], c[40:50]] for name, c in columns.items()}
    result = filt.filter({**whole, "sequence": np.repeat(["p", "q"], 10)})
    torch.testing.assert_close(result.mean[10:], filt.filter(x[40:50]).mean)
    belief = filt.init()
    for t in range(20):
        row = {name: c[t] for name, c in whole.items()}
        belief = filt.step(belief, {**row, "sequence": "p" if t < 10 else "q"})
        torch.testing.assert_close(belief.mean, result.mean[t])


def test_data_sets_fitted_together_and_frames():
    pairs = [speed(80, k) for k in (0, 10)]
    x, z = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    both = fitted((x, z), history=2, velocity=True)
    alone = fitted(pairs[1], history=2, velocity=True)
    torch.testing.assert_close(both.filter(x).mean[1], alone.filter(x[1]).mean)
    plain = fitted((x, z), velocity=True, standardize=False)
    assert plain.filter(x).mean.shape == (2, 80, 1)
    assert plain.init().embedding.points.shape[-1] == 1
    frames = torch.cat([x[0], x[0] ** 2], -1).reshape(80, 1, 2, 2)
    seen = fitted((frames, z[0]), history=2)
    flat = fitted((frames.flatten(1), z[0]), history=2, standardize=False)
    assert seen.shape == (1, 2, 2)
    assert flat.shape == (4,)
    belief = seen.init()
    for t in range(5):
        belief = seen.step(belief, frames[t])
    torch.testing.assert_close(belief.mean, seen.filter(frames[:5]).mean[-1])


def test_compressed_filters_keep_their_history(tmp_path):
    pair = speed(200, 0)
    small = fitted(pair, history=2, velocity=True).compress(150, x=pair[0], z=pair[1])
    assert small.filter(pair[0]).mean.shape == (200, 1)
    assert small.compression.mse_after < 2 * small.compression.mse_before
    with pytest.raises(KbrError, match="history=1"):
        small.export(tmp_path / "step.pt2")


def test_what_cannot_be_is_refused_in_a_line():
    for setting in ({"history": 0}, {"history": "some"}, {"velocity": "yes"}):
        with pytest.raises(KbrError, match=next(iter(setting))):
            KernelBayesFilter(**setting)
    x, z = speed(60, 0)
    with pytest.raises(KbrError, match="x\\[:, None\\]"):
        fitted((x[:, 0], z), history=2)
    filt = fitted((x, z), velocity=True)
    with pytest.raises(KbrError, match="velocity=False"):
        filt.init(prior=[[0.0], [0.1]])
    with pytest.raises(KbrError, match="as in training"):
        fitted((x, z), history=2, standardize=False).filter(torch.zeros(5, 3))


def test_without_history_nothing_changes():
    """And `auto` takes neither where a row and a latent tell all."""
    x, z = Rotation().sample(150, torch.Generator().manual_seed(1000))
    quick = {"scales": (0.5, 1.0), "lams": (1e-3,)}
    plain, given, chosen = (
        KernelBayesFilter(**quick, history=k, velocity=v).fit(x, z)
        for k, v in ((1, False), (1, False), ("auto", "auto"))
    )
    assert torch.equal(plain.filter(x).mean, chosen.filter(x).mean)
    assert "history" not in repr(given)
    assert repr(chosen).endswith("history=1, velocity=False)")


FEW = {"scales": (0.35, 0.7), "lams": (1e-3, 1e-2)}


def errors(make, lift, seeds, **settings) -> Tensor:
    """Of filters with a lift on a fresh sequence each, all data sets fitted together."""
    pairs = [[make(300, 100 * seed + k) for seed in seeds] for k in (0, 50)]
    train, test = ([torch.stack(part) for part in zip(*some, strict=True)] for some in pairs)
    mean = KernelBayesFilter(**lift, **settings).fit(*train).filter(test[0]).mean
    return (mean - test[1]).square().sum(-1).mean(-1)


@pytest.mark.parametrize(
    ("make", "lift", "bar"), [(pendulum, {"velocity": True}, 0.6), (speed, {"history": 2}, 0.3)]
)
def test_several_rows_tell_more(make, lift, bar):
    without, with_it = (errors(make, some, [10], **FEW) for some in ({}, lift))
    assert with_it < bar * without


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "lift", "bar"), [(pendulum, {"velocity": True}, 0.5), (speed, {"history": 2}, 0.1)]
)
def test_bar_of_history_and_velocity(make, lift, bar):
    """Found on other seeds: a third of the error, and a twentieth."""
    without, with_it = (errors(make, some, range(10)) for some in ({}, lift))
    assert with_it.mean() < bar * without.mean()
    assert (with_it < without).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_auto_finds_them(seed):
    auto = KernelBayesFilter(history="auto", velocity="auto", **FEW)
    assert auto.fit(*pendulum(300, 100 * seed)).lift["velocity"]
    assert auto.fit(*speed(300, 100 * seed)).lift["history"] > 1
    x, z = Rotation().sample(400, torch.Generator().manual_seed(seed))
    assert auto.fit(x, z).lift == {"history": 1, "velocity": False}
