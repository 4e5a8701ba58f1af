"""Absent sensors drop out of the update; the others still count."""

import json
import math
import pickle
from functools import partial

import filter_reference as reference
import numpy as np
import pytest
import torch
from recordings import command, write_csv

import kbr
from kbr import (
    Gaussian,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
    Laplace,
    Linear,
    Matern32,
    OriginalRule,
)
from kbr.app.streaming.command import Options, stream
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.training import MLP, GRUFilter, KalmanNNFilter, LearnedFilter

LAM, ETA = 1e-2, 1e-4
FIXED = {"rule": ImportanceWeightedRule(lam=LAM), "eta": ETA, "scales": (0.5,), "widths": (1.0,)}
BEACONS = torch.tensor([[2, 2], [-2, 2], [-2, -2], [2, -2]], dtype=torch.float64)


def robot(n, seed, *, absent=0.7):
    """A robot on a ring with distances x [n 4] to four beacons, each absent at random; z [n 2]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    angle = (0.15 + 0.1 * normal(n)).cumsum(0) + 2 * math.pi * normal(1)
    kicks, radius, path = 0.1 * normal(n), torch.ones(()), []
    for kick in kicks:
        radius = 1 + 0.9 * (radius - 1) + kick
        path.append(radius)
    z = torch.stack(path).unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)
    x = torch.cdist(z, BEACONS) + 0.05 * normal(n, 4)
    gone = torch.rand(n, 4, generator=generator, dtype=torch.float64) < absent
    return torch.where(gone, torch.nan, x), z


def error(result, z):
    return float((result.mean - z).square().sum(-1).mean())


@pytest.fixture(scope="module")
def fitted():
    x, z = robot(260, 1000, absent=0.2)  # so that every set of sensors is there often
    fuse = {name: KernelBayesFilter(**FIXED, fusion=name) for name in ("product", "sequence")}
    own = {"x_2": Laplace(scale=2.0), "x_4": Matern32()}  # the others have the rule's Gaussian
    fuse["kernels"] = KernelBayesFilter(**FIXED, fusion="product", sensor_kernels=own)
    for filt in fuse.values():
        filt.fit(x[:200], z[:200], sensors="each")
    return fuse, x, z


PROFILES = {  # of kernels, in the distance over the bandwidth
    "Gaussian": lambda t: np.exp(-(t**2) / 2),
    "Laplace": lambda t: np.exp(-t),
    "Matern32": lambda t: (1 + np.sqrt(3) * t) * np.exp(-np.sqrt(3) * t),
}


def product_gram(a, b, kernels):
    """The product over columns, of which each sensor has one, of their kernels."""
    gram = np.ones((len(a), len(b)))
    for ours, theirs, kernel in zip(a.T, b.T, kernels, strict=True):
        distance = abs(ours[:, None] - theirs[None]) / kernel.scale
        gram *= PROFILES[type(kernel).__name__](distance)
    return gram


def dense(x, z, x_test, filt, in_turn, first=None):
    """The filter in dense numpy: a Gram matrix for the sensors that are there, on rows with them.

    `in_turn` updates with one sensor after the other. Bandwidths are those of the `first` rows.
    """
    own, names = filt.sensor_kernels or {}, filt.choice.sensors.names
    kernels = [own.get(name, Gaussian()) for name in names]
    widths = [reference.median_bandwidth(c[np.isfinite(c)][:, None], 0.5) for c in x[:first].T]
    widths = np.array(widths) * filt.choice.sensors.scales
    g_z = reference.gram(z, z, reference.median_bandwidth(z[:first], 0.5))
    w, means = np.full(len(z), 1 / len(z)), []
    for t, now in enumerate(x_test):
        if t > 0:
            w = reference.transition(g_z, w, ETA)
            w = w / w.sum()
        some = np.flatnonzero(np.isfinite(now))
        for sensors in [[k] for k in some] if in_turn else [list(some)]:
            if not sensors:
                continue
            rows = np.flatnonzero(np.isfinite(x[:, sensors]).all(1))
            ratio = np.maximum(reference.kulsif(g_z, w, ETA), 0)[rows]
            seen, query = (v / widths[sensors] for v in (x[np.ix_(rows, sensors)], now[sensors]))
            some = [kernels[k] for k in sensors]
            g_x = product_gram(seen, seen, some)
            near = product_gram(seen, query[None], some)[:, 0]
            w = np.zeros(len(z))
            w[rows] = reference.importance_weighted(g_x, near, ratio / ratio.mean(), LAM)
            w = w / w.sum()
        means.append(w @ z)
    return np.stack(means)


@pytest.mark.parametrize("fusion", ["product", "sequence", "kernels"])
def test_the_update_is_that_of_the_sensors_there(fitted, fusion):
    fuse, x, z = fitted
    filt = fuse[fusion]
    inner = [filt.units.x.apply(x), filt.units.z.apply(z)]
    seen, latent = (rows.numpy() for rows in inner)
    expected = dense(seen[:200], latent[:200], seen[200:220], filt, fusion == "sequence")
    scaling = filt.units.z
    expected = torch.from_numpy(expected) * scaling.scale + scaling.mean
    found = filt.filter(x[200:220])
    torch.testing.assert_close(found.mean, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fusion", ["product", "sequence", "kernels"])
def test_every_way_gives_one_answer(fitted, fusion, tmp_path):
    fuse, x, _ = fitted
    filt, new = fuse[fusion], x[200:230].clone()
    new[5:8] = torch.nan  # all sensors absent
    whole = filt.filter(new)
    assert not whole.evidence[5:8].any()
    belief = filt.init()
    for t, row in enumerate(new):
        belief = filt.step(belief, row)
        torch.testing.assert_close(belief.mean, whole.mean[t], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(belief.cov, whole.cov[t], rtol=1e-7, atol=1e-9)
        if t == 4:
            ahead = filt.forecast(belief, 3)
    torch.testing.assert_close(ahead.mean, whole.mean[7], rtol=1e-9, atol=1e-9)
    together = filt.filter(torch.stack([new, x[230:260]]))
    torch.testing.assert_close(together.mean[0], whole.mean, rtol=1e-9, atol=1e-9)
    filt.save(tmp_path / "filter.ckpt")
    for other in (
        KernelBayesFilter.load(tmp_path / "filter.ckpt"),
        pickle.loads(pickle.dumps(filt)),
    ):
        again = other.filter(new)
        torch.testing.assert_close(again.mean, whole.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(again.cov, whole.cov, rtol=1e-9, atol=1e-9)


def test_rows_that_are_added_later_count(fitted, tmp_path):
    """The features of z are those of the first rows, which represent the others closely."""
    (_, x, z), filt = (
        fitted,
        KernelBayesFilter(
            **FIXED,
            engine="active_set",
            fusion="product",
            sensor_kernels={"x_2": Laplace(scale=2.0)},
        ),
    )
    before = filt.fit(x[:150], z[:150], sensors="each").filter(x[200:215])
    filt.partial_fit(x[150:200], z[150:200], continues=True)
    inner = [filt.units.x.apply(x), filt.units.z.apply(z)]
    seen, latent = (rows.numpy() for rows in inner)
    expected = dense(seen[:200], latent[:200], seen[200:215], filt, False, first=150)
    found = filt.filter(x[200:215])
    scaling = filt.units.z
    expected = torch.from_numpy(expected) * scaling.scale + scaling.mean
    torch.testing.assert_close(found.mean, expected, rtol=1e-3, atol=1e-3)
    assert (found.mean - before.mean).abs().max() > 0.02
    filt.save(tmp_path / "filter.ckpt")
    again = KernelBayesFilter.load(tmp_path / "filter.ckpt").filter(x[200:215])
    torch.testing.assert_close(again.mean, found.mean, rtol=1e-9, atol=1e-9)


def test_smoothing_takes_absent_sensors(fitted):
    fuse, x, z = fitted
    filt = fuse["product"]
    assert error(filt.smooth(x[200:]), z[200:]) < error(filt.filter(x[200:]), z[200:])


def test_one_sensor_is_a_filter_without_sensors():
    x, z = robot(160, 1001, absent=0.0)
    plain = KernelBayesFilter(**FIXED, correction=None).fit(x[:120], z[:120]).filter(x[120:])
    whole = KernelBayesFilter(**FIXED).fit(x[:120], z[:120], sensors={"all": [0, 1, 2, 3]})
    answer = whole.filter(x[120:])
    torch.testing.assert_close(answer.mean, plain.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(answer.raw_cov, plain.raw_cov, rtol=1e-5, atol=1e-6)


def test_a_sensor_unlike_its_training_drops_out(fitted):
    fuse, _, _ = fitted
    row = torch.tensor([2.0, 2.1, 1.9, 2.0], dtype=torch.float64)
    wild, gone = row.clone(), row.clone()
    wild[2], gone[2] = 1e3, torch.nan
    for filt in fuse.values():
        start = filt.init()
        found = [filt.step(start, one) for one in (wild, gone)]
        assert bool(found[0].evidence)
        torch.testing.assert_close(found[0].mean, found[1].mean, rtol=1e-12, atol=1e-12)
        assert not bool(filt.step(start, 1e3 * row).evidence)


@pytest.mark.parametrize("seed", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_absent_sensors_cost_less_than_half_of_voided_rows(seed):
    """Each beacon absent 70 % of the time: only .8 % of the rows are whole."""
    (x, z), (whole, _) = robot(600, seed), robot(600, seed, absent=0.0)
    grid = {"scales": (0.5,), "lams": (0.03,)}
    voided = KernelBayesFilter(**grid).fit(whole[:300], z[:300]).filter(x[300:])
    filt = KernelBayesFilter(**grid).fit(x[:300], z[:300], sensors="each")
    out = filt.filter(x[300:])
    assert error(out, z[300:]) < 0.25 * error(voided, z[300:])  # .1 here
    held = float(filt.credible_region(out).contains(z[300:]).double().mean())
    assert 0.8 < held < 0.98


def test_names_angles_and_sensors_that_training_hardly_saw():
    x, z = robot(200, 1002, absent=0.3)
    yaw = torch.atan2(z[:, 1], z[:, 0]).rad2deg()
    table = {f"r{k}": x[:, k].numpy() for k in range(4)} | {"yaw": yaw.numpy()}
    table["r3"] = np.where(np.arange(200) < 4, table["r3"], np.nan)
    sensors = {"near": ["r0", "r1"], "far": "r2", "lost": ["r3"], "compass": ["yaw"]}
    filt = KernelBayesFilter(scales=(0.5,), lams=(1e-2,))
    filt.fit(table, z, circular=["yaw"], sensors=sensors)
    assert filt.choice.sensors.names == ("near", "far", "lost", "compass")
    assert filt.choice.sensors.columns == ((0, 1), (2,), (3,), (4, 5))
    assert any("lost" in note for note in filt.operators.notes)
    row = {"r0": np.nan, "r1": 2.0, "r2": 2.0, "r3": 1.0, "yaw": 30.0}
    alone = {**row, "r1": np.nan, "r3": np.nan}
    both = [filt.step(filt.init(), one).mean for one in (row, alone)]
    torch.testing.assert_close(*both, rtol=1e-12, atol=1e-12)  # r1 is absent with r0


def test_what_cannot_be_is_refused(fitted, tmp_path):
    x, z = robot(60, 1003)
    filt = KernelBayesFilter(scales=(0.5,), lams=(1e-2,))
    wrong = (
        ({"a": ["x_1", "x_9"]}, "x_9.*no column"),
        ({"a": ["x_1"], "b": ["x_1", "x_2", "x_3", "x_4"]}, "'a' and 'b'"),
        ({"a": ["x_1"]}, "no sensor for x_2, x_3, x_4"),
        ({}, "name the columns"),
        ("every", "'each'"),
        ({"a": [], "b": [0, 1, 2, 3]}, "no column in a"),
    )
    for sensors, words in wrong:
        with pytest.raises(KbrError, match=words):
            filt.fit(x, z, sensors=sensors)
    few = torch.where(torch.arange(60).unsqueeze(-1) < 5, x, torch.nan)
    with pytest.raises(KbrError, match="fewer than 10"):
        filt.fit(few, z, sensors="each")
    with pytest.raises(KbrError, match="at least one number"):
        filt.fit(torch.full_like(x, torch.nan), z, sensors="each")
    with pytest.raises(KbrError, match="one data set"):
        filt.fit(x.expand(2, -1, -1), z.expand(2, -1, -1), sensors="each")
    with pytest.raises(KbrError, match="history"):
        KernelBayesFilter(history=2).fit(x, z, sensors="each")
    with pytest.raises(KbrError, match="normalises"):
        KernelBayesFilter(rule=OriginalRule()).fit(x, z, sensors="each")
    known = ImportanceWeightedRule(ratio=TransitionRatio(model=Rotation().state_space()))
    with pytest.raises(KbrError, match="sensors"):
        KernelBayesFilter(rule=known).fit(x, z, sensors="each")
    with pytest.raises(KbrError, match="fusion"):
        KernelBayesFilter(fusion="sum")
    for kernels in ({}, {"a": Linear()}, {"a": Laplace(bandwidth=2.0)}):
        with pytest.raises(KbrError, match="sensor_kernels"):
            KernelBayesFilter(sensor_kernels=kernels)
    own = KernelBayesFilter(sensor_kernels={"x_9": Laplace()})
    with pytest.raises(KbrError, match="'x_9', which is no sensor; there are x_1, x_2, x_3, x_4"):
        own.fit(x, z, sensors="each")
    with pytest.raises(KbrError, match="no sensor; there are none: pass sensors"):
        own.fit(z, z)
    fixed = ImportanceWeightedRule(kernel_x=Gaussian(bandwidth=1.0))
    with pytest.raises(KbrError, match=r"rule\.kernel_x"):
        KernelBayesFilter(rule=fixed, sensor_kernels={"x_1": Laplace()})
    done = fitted[0]["product"]
    with pytest.raises(KbrError, match="absent sensors"):
        done.compress(20)
    with pytest.raises(KbrError, match="absent sensors"):
        done.export(tmp_path / "step.pt2")


def test_bandwidths_are_shown_with_the_scale_of_their_kernel():
    (x, z), names = robot(80, 1000, absent=0.2), ("x_1", "x_2", "x_3", "x_4")
    wide = Gaussian(scale=3.0)
    kinds = [
        {"rule": ImportanceWeightedRule(lam=LAM, kernel_x=wide)},
        {"sensor_kernels": dict.fromkeys(names, wide)},
    ]
    shown = []
    for kind in kinds:
        filt = KernelBayesFilter(**{**FIXED, **kind}, fusion="product").fit(x, z, sensors="each")
        shown.append([one.value for one in filt.summary().bandwidths if one.of == "x"])
    assert shown[0] == pytest.approx(shown[1])


@pytest.mark.slow
def test_bandwidths_and_fusion_are_chosen_by_validation():
    """A sensor that is noise alone gets a wide bandwidth, without which it doubles the error."""
    x, z = robot(420, 1004, absent=0.2)
    noise = torch.randn(420, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    filt = KernelBayesFilter(scales=(0.5,), lams=(1e-2,))
    clean = error(filt.fit(x[:300], z[:300], sensors="each").filter(x[300:]), z[300:])
    noisy = torch.cat([x, noise], -1)
    out = filt.fit(noisy[:300], z[:300], sensors="each").filter(noisy[300:])
    assert error(out, z[300:]) < 1.3 * clean
    assert filt.choice.sensors.scales[-1] >= 8


@pytest.mark.parametrize("network", [LearnedFilter, GRUFilter, KalmanNNFilter])
def test_networks_see_which_sensors_are_there(network, tmp_path):
    """Zeros and flags: a stream, a file and units of about 1e6 give the same answers."""
    x, z = robot(300, 1008, absent=0.5)
    x, z = 1e6 + 1e3 * x, 5e6 + z
    encoder = partial(MLP, hidden=(32,), n_features=8)
    filt = network(encoder=encoder, epochs=30, noise=0.1, val_every=15)
    filt.fit(x[:240], z[:240], sensors="each", trainer={"accelerator": "cpu"})
    assert filt.shape == (4,)
    new = x[240:].clone()
    new[3:5] = torch.nan
    whole = filt.filter(new)
    assert not whole.evidence[3:5].any()
    assert whole.evidence[~new.isnan().all(-1)].all()
    assert error(whole, z[240:]) < 0.5 * float(z.var(0).sum())
    belief = filt.init()
    for t in range(8):
        belief = filt.step(belief, new[t])
        torch.testing.assert_close(belief.mean, whole.mean[t], rtol=1e-9, atol=1e-6)
    filt.save(tmp_path / "filter.ckpt")
    again = network.load(tmp_path / "filter.ckpt").filter(new)
    torch.testing.assert_close(again.mean, whole.mean, rtol=1e-9, atol=1e-6)
    flipped = torch.where(new.isnan(), x[0], new)  # what was absent is there
    assert (filt.filter(flipped).mean - whole.mean).abs().max() > 1e-3


def rides(rows, seed):
    """Distances of about 1e6, an angle, words, and places about 5e6: what nobody prepared."""
    x, z = robot(rows, seed, absent=0.5)
    rng = np.random.default_rng(seed)
    yaw = np.degrees(np.arctan2(*z.numpy().T[::-1])) + 10 * rng.normal(size=rows)
    yaw[rng.random(rows) < 0.5] = np.nan
    table = {"time": (1e6 + 0.5 * np.arange(rows)).tolist(), "place": ["yard"] * rows}
    for name, column in zip(("r1", "r2", "r3", "r4"), (1e6 + 1e3 * x.numpy()).T, strict=True):
        table[name] = [None if math.isnan(v) else v for v in column.tolist()]
    table["yaw"] = [None if math.isnan(v) else v for v in yaw.tolist()]
    return table | {"east": (5e6 + 100 * z[:, 0]).tolist(), "north": z[:, 1].tolist()}


def test_from_a_table_to_a_stream(tmp_path, monkeypatch, capsys):
    for name, rows, seed in (("log", 240, 1005), ("new", 30, 1006)):
        table = rides(rows, seed)
        write_csv(tmp_path / f"{name}.csv", table, list(table))
    run = tmp_path / "run"
    monkeypatch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
    keys = [
        f"data.path={tmp_path / 'log.csv'}",
        "data.x=[r1,r2,r3,r4,yaw]",
        "data.z=[east,north]",
        "data.circular=[yaw]",
        "data.sensors={a:[r1,r2],b:r3,c:[r4],compass:[yaw]}",
        "logger=csv",
        f"hydra.run.dir={run}",
    ]
    quick = ["model=iw", "model.scales=[0.5]", "model.lams=[0.01]"]
    quick.append("model.sensor_kernels={b:{_target_:kbr.Laplace}}")
    command(monkeypatch, "train", "data=recording", *keys, *quick)
    assert "of x are there: r1 " in capsys.readouterr().out
    filt = kbr.load_filter(str(run))
    assert isinstance(filt.sensor_kernels["b"], Laplace)
    expected = filt.filter(kbr.read_recording(tmp_path / "new.csv", filt))
    assert expected.evidence.double().mean() > 0.7
    known = np.stack([rides(30, 1006)[name] for name in ("east", "north")], 1)
    away = (expected.mean.numpy() - known) / [100, 1]
    assert np.sqrt((away**2).sum(1).mean()) < 0.6  # of a ring of radius 1
    stream(Options(run=str(run), input=str(tmp_path / "new.csv"), output=str(tmp_path / "o.jsonl")))
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    means = np.array([line["mean"] for line in lines])
    np.testing.assert_allclose(means, expected.mean.numpy(), rtol=1e-9)
    monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [])
    command(monkeypatch, "evaluate", f"run={run}", f"data.path={tmp_path / 'new.csv'}")
    with np.load(run / "evaluation" / "new" / "posterior.npz") as answer:
        np.testing.assert_allclose(answer["mean"][0], means, rtol=1e-9)
    command(monkeypatch, "evaluate", f"run={run}")
    with pytest.raises(SystemExit):
        command(monkeypatch, "train", "data=recording", *keys[:-1], "model=iw_refined")
    assert "data.sensors: model=iw_refined" in capsys.readouterr().err


def test_rows_that_lack_one_number_are_advised(tmp_path, monkeypatch, capsys):
    table = rides(240, 1005)
    table["r2"][:60] = [None] * 60  # one is there, the other is not
    table["r1"] = [1e6 if v is None else v for v in table["r1"]]
    table["r2"][60:] = [1e6 if v is None else v for v in table["r2"][60:]]
    write_csv(tmp_path / "log.csv", table, list(table))
    path = f"data.path={tmp_path / 'log.csv'}"
    keys = [path, "data.x=[r1,r2]", "data.z=[north]", "logger=csv"]
    monkeypatch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
    quick = ["model=iw", "model.scales=[0.5]", "model.lams=[0.01]"]
    command(monkeypatch, "train", "data=recording", *keys, *quick, f"hydra.run.dir={tmp_path}/run")
    assert "data.sensors=each" in capsys.readouterr().out
