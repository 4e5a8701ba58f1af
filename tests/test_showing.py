"""What filters and answers show of themselves: scores, tables, pictures, summaries, bars."""

import math
import pickle
import re
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.patches import Ellipse

from kbr import (
    Embedding,
    ExtendedKalmanFilter,
    KbrError,
    KernelBayesFilter,
    StateSpaceModel,
    posterior_from_simulations,
)
from kbr.core.filters.refined import RefinedFilter
from kbr.core.filters.result import FilterResult
from kbr.core.io.memory import tensor_bytes
from kbr.training import GRUFilter, LearnedFilter, LSTMFilter
from kbr.training.encoders import MLP

GAP = slice(20, 26)
FEW = {"scales": (0.5,), "lams": (0.1,)}
QUIET = {"enable_progress_bar": False}


def circle(n, seed=0):
    rng = np.random.default_rng(seed)
    angle = np.cumsum(0.3 + 0.1 * rng.normal(size=n))
    z = np.stack([np.cos(angle), np.sin(angle)], 1)
    return z + 0.3 * rng.normal(size=z.shape), z, np.degrees(angle) % 360


X, Z, YAW = circle(120)
X_TEST, Z_TEST, YAW_TEST = circle(60, 1)
GAPPED = X_TEST.copy()
GAPPED[GAP] = np.nan


@pytest.fixture(scope="module")
def filt():
    return KernelBayesFilter(**FEW).fit(X, Z)


@pytest.fixture(scope="module")
def turning():
    """A filter of a heading and a speed, with names."""
    z = pd.DataFrame({"yaw": YAW, "speed": 3 + Z[:, 0]})
    x = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": z.speed + 0.1 * X[:, 0]})
    return KernelBayesFilter(**FEW).fit(x, z, circular="yaw"), x, z


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


class TestScore:
    def test_its_numbers_are_those_of_a_loop(self, filt):
        out = filt.filter(GAPPED)
        score = out.score(Z_TEST)
        mean, cov, inside, logs = out.mean.numpy(), out.cov.numpy(), 0, 0.0
        for m, c, z in zip(mean, cov, Z_TEST, strict=True):
            far = (z - m) @ np.linalg.inv(c) @ (z - m)
            inside += far <= -2 * math.log(0.1)  # the 90 % quantile of chi-square with 2
            logs -= 0.5 * (far + math.log(np.linalg.det(2 * math.pi * c)))
        assert score.mse == pytest.approx(np.square(mean - Z_TEST).sum(1).mean())
        assert score.mae == pytest.approx(np.abs(mean - Z_TEST).sum(1).mean())
        assert score.coverage == pytest.approx(inside / len(mean))
        assert score.log_likelihood == pytest.approx(logs / len(mean), rel=1e-5)
        assert score.rmse["z_2"] == pytest.approx(np.square(mean - Z_TEST)[:, 1].mean() ** 0.5)
        assert len(repr(score)) < 120

    def test_an_angle_counts_by_its_nearest_turn(self, turning):
        filt, x, z = turning
        out = filt.filter(x)
        score, again = out.score(z), out.score(z.assign(yaw=z.yaw - 360))
        assert again.mse == pytest.approx(score.mse)
        assert again.log_likelihood == pytest.approx(score.log_likelihood)
        assert score.rmse["yaw"] < 40

    def test_steps_without_a_truth_do_not_count(self, filt):
        out, z = filt.filter(X_TEST), Z_TEST.copy()
        z[10:] = np.nan
        assert out.score(z).steps == 10
        with pytest.raises(KbrError, match="no step has a truth"):
            out.score(np.full_like(z, np.nan))
        with pytest.raises(KbrError, match="must have shape"):
            out.score(Z_TEST[:5])


class TestTable:
    def test_columns_have_the_names_of_the_data(self, turning):
        filt, x, _ = turning
        out = filt.filter(x)
        table = out.to_pandas(index=x.index)
        assert list(table) == ["yaw", "speed", "yaw_sd", "speed_sd", "evidence", "since"]
        np.testing.assert_array_equal(table.speed, out.mean[:, 1])
        np.testing.assert_array_equal(table.yaw_sd, out.sd[:, 0])
        with pytest.raises(KbrError, match="one entry a row"):
            out.to_pandas(index=x.index[:5])

    def test_since_counts_steps_without_evidence(self, filt):
        late = GAPPED.copy()
        late[:2] = np.nan
        table = filt.filter(late).to_pandas()
        assert table.since[:2].isna().all()
        assert list(table.since[18:27]) == [0, 0, 1, 2, 3, 4, 5, 6, 0]
        assert list(table.evidence[:3]) == [False, False, True]

    def test_several_sequences_have_two_levels(self, filt):
        out = filt.filter(np.stack([X_TEST, GAPPED]))
        table = out.to_pandas()
        assert table.index.names == ["sequence", "step"]
        pd.testing.assert_frame_equal(
            table.loc[1], filt.filter(GAPPED).to_pandas(), check_exact=False
        )
        one = out.sequence(1)
        torch.testing.assert_close(one.mean, out.mean[1])
        assert one.states.shape[0] == 60
        with pytest.raises(KbrError, match="takes 1 number"):
            out.sequence(2)

    def test_names_that_meet_are_refused(self):
        z = pd.DataFrame({"v": Z[:, 0], "v_sd": Z[:, 1]})
        with pytest.raises(KbrError, match="meet those of other columns"):
            KernelBayesFilter(**FEW).fit(X, z).filter(X_TEST).to_pandas()


class TestPlot:
    def test_latents_over_time(self, filt):
        axes = filt.filter(GAPPED).plot(Z_TEST, time=np.arange(60) / 2)
        assert [axis.get_ylabel() for axis in axes] == ["z_1", "z_2"]
        labels = axes[0].get_legend_handles_labels()[1]
        assert labels == ["90 % band", "truth", "filter mean", "no evidence"]
        assert axes[-1].get_xlabel() == "time"
        *_, shade = axes[0].patches
        assert shade.get_x() == pytest.approx(9.75)
        assert shade.get_x() + shade.get_width() == pytest.approx(12.75)

    def test_lines_of_angles_do_not_cross_the_picture(self, turning):
        filt, x, z = turning
        axes = filt.filter(x).plot(z)
        assert axes[0].get_ylabel() == "yaw [deg]"
        for line in axes[0].lines:
            assert (np.abs(np.diff(line.get_ydata())) <= 180).all()
        assert len(axes[0].lines) > len(axes[1].lines)

    def test_a_path_has_the_ellipses_of_its_regions(self, filt):
        out = filt.filter(GAPPED)
        axis = out.plot(Z_TEST, kind="path")
        rings = [patch for patch in axis.patches if isinstance(patch, Ellipse)]
        assert len(rings) == len(out.mean)
        area = math.pi * rings[9].width * rings[9].height / 4
        exact = math.pi * -2 * math.log(0.1) * float(torch.linalg.det(out.cov[9])) ** 0.5
        assert area == pytest.approx(exact, rel=1e-6)

    def test_it_draws_on_axes_that_are_given(self, filt):
        figure, axes = plt.subplots(1, 2)
        assert filt.filter(X_TEST).plot(ax=axes)[0].figure is figure
        with pytest.raises(KbrError, match="2 axes"):
            filt.filter(X_TEST).plot(ax=axes[0])

    def test_what_cannot_be_drawn_is_refused(self, filt, turning):
        out = filt.filter(np.stack([X_TEST, X_TEST]))
        with pytest.raises(KbrError, match=r"out.sequence\(0\)"):
            out.plot()
        with pytest.raises(KbrError, match="kind must be"):
            out.sequence(0).plot(kind="line")
        with pytest.raises(KbrError, match="no angles"):
            turning[0].filter(turning[1]).plot(kind="path")
        with pytest.raises(KbrError, match="one value a step"):
            out.sequence(0).plot(time=[1, 2])

    def test_beliefs_of_two_latents_and_of_angles(self, filt, turning):
        belief = filt.step(filt.init(), X_TEST[0])
        axis = belief.plot()
        (ring,) = axis.patches
        assert ring.center == pytest.approx(belief.mean.numpy())
        named, x, _ = turning
        axes = named.step(named.init(), x.iloc[0]).plot()
        assert [axis.get_xlabel() for axis in axes] == ["yaw [deg]", "speed"]

    def test_without_matplotlib_it_says_what_to_install(self, filt, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(KbrError, match="pip install matplotlib"):
            filt.filter(X_TEST).plot()

    def test_answers_of_classical_filters_show_themselves_too(self):
        eye = torch.eye(2)
        model = StateSpaceModel(
            transition=lambda z: z,
            transition_cov=eye,
            initial_mean=torch.zeros(2),
            initial_cov=eye,
            observation=lambda z: z,
            observation_cov=eye,
        )
        out = ExtendedKalmanFilter(model=model).filter(torch.tensor(GAPPED))
        assert out.score(Z_TEST).steps == 60
        assert list(out.to_pandas()) == ["z_1", "z_2", "z_1_sd", "z_2_sd", "evidence"]
        assert len(out.plot()) == 2
        assert len(repr(ExtendedKalmanFilter(model=model))) < 100


def test_a_path_of_forecasts_is_what_single_forecasts_are(filt):
    belief = filt.init()
    for row in X_TEST[:3]:
        belief = filt.step(belief, row)
    path = filt.forecast(belief, 4, path=True)
    assert isinstance(path, FilterResult)
    assert path.mean.shape == (4, 2)
    for step in (1, 4):
        one = filt.forecast(belief, step)
        for name in ("mean", "cov", "raw_cov", "since"):
            torch.testing.assert_close(getattr(path, name)[step - 1], getattr(one, name))
    assert not path.evidence.any()
    region, single = filt.credible_region(path), filt.credible_region(one)
    torch.testing.assert_close(region.radius2[-1], single.radius2)


def test_a_path_of_forecasts_with_controls():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(120, 1))
    z = np.cumsum(u, 0) % 3
    filt = KernelBayesFilter(**FEW).fit(z + 0.1, z, u=u)
    belief = filt.step(filt.init(), z[0] + 0.1)
    path = filt.forecast(belief, u=u[:3], path=True)
    torch.testing.assert_close(path.mean[-1], filt.forecast(belief, u=u[:3]).mean)


class TestSummary:
    def test_it_is_a_table_of_80_columns_with_facts_to_read(self, filt):
        summary = filt.summary()
        text = repr(summary)
        assert max(map(len, text.splitlines())) <= 80
        assert "120 steps, x [2] -> z (z_1, z_2)" in text
        assert summary.ranks["z"] == filt.operators.rank
        assert summary.setting("lam").values == (0.1,)
        assert "lam             0.1, given" in text
        assert summary.seconds > 0
        assert summary.memory > filt.operators.phi.nbytes
        assert 0.85 < summary.coverage < 0.96

    def test_errors_and_bandwidths_are_in_the_units_of_the_data(self):
        """Kilometres in place of metres: numbers a thousand times smaller."""
        here = KernelBayesFilter(**FEW).fit(X, Z).summary()
        there = KernelBayesFilter(**FEW).fit(X / 1000, Z / 1000).summary()
        for one, other in zip(here.bandwidths, there.bandwidths, strict=True):
            assert other.value == pytest.approx(one.value / 1000)
        assert there.rmse["z_1"] == pytest.approx(here.rmse["z_1"] / 1000, rel=1e-3)
        assert there.val_mse == pytest.approx(here.val_mse, nan_ok=True)

    def test_an_angles_bandwidth_is_in_degrees(self, turning):
        filt, _, _ = turning
        widths = {each.column: each.value for each in filt.summary().bandwidths}
        assert set(widths) == {"a", "b", "c", "yaw", "speed"}
        inner = float(filt.fitted.latents.kernel.bandwidth)
        chord = inner * float(filt.units.z.scale[0])
        assert widths["yaw"] == pytest.approx(math.degrees(chord))

    def test_it_says_where_on_its_grid_a_value_lies(self):
        filt = KernelBayesFilter(scales=(0.5,), lams=(0.1, 100.0)).fit(X, Z)
        lam = filt.summary().setting("lam")
        assert lam.bounds == (0.1, 100.0)
        assert lam.edges == ("at the lower end: widen lams",)
        assert "0.1, listed 0.1 .. 100, at the lower end: widen lams" in " ".join(
            repr(filt.summary()).split()
        )
        searched = filt.summary().setting("eta")
        assert searched.source == "searched"

    def test_a_loaded_filter_has_it_too(self, filt, tmp_path):
        filt.save(tmp_path / "filter.ckpt")
        loaded = KernelBayesFilter.load(tmp_path / "filter.ckpt").summary()
        assert loaded.seconds is None
        assert "not kept in files" in repr(loaded)
        assert loaded.rmse == pytest.approx(filt.summary().rmse)
        assert loaded.settings == filt.summary().settings

    def test_data_sets_fitted_together(self):
        x, z = np.stack([X, 2 * X]), np.stack([Z, Z])
        text = repr(KernelBayesFilter(**FEW).fit(x, z).summary())
        assert "2, fitted together" in text
        assert "held out" in text

    def test_compressed_and_grown_filters_say_so(self, filt):
        small = filt.compress(40).summary()
        assert small.n == len(Z)
        assert f"weighted pairs in the place of {len(Z)} pairs" in small.approximations[-1]
        grown = pickle.loads(pickle.dumps(filt)).partial_fit(X_TEST, Z_TEST)
        assert "60 steps" in grown.summary().details["added later"]

    def test_sensors_controls_and_history(self):
        x, z = np.hstack([X, X[:, :1]])[:40], Z[:40]
        x[::7, 2] = np.nan
        sensors = {"place": [0, 1], "other": [2]}
        filt = KernelBayesFilter(**FEW, fusion="product").fit(x, z, sensors=sensors, u=z[:, :1])
        summary = filt.summary()
        assert "place" in summary.details["sensors"]
        assert [each.of for each in summary.bandwidths] == ["x"] * 3 + ["z"] * 2 + ["u"]
        longer = KernelBayesFilter(**FEW, history=2, velocity=True).fit(X[:60], Z[:60]).summary()
        assert set(longer.details) == {"history", "velocity", "correction"}
        assert len(longer.bandwidths) == 4

    def test_refined_filters(self, tmp_path):
        filt = RefinedFilter(base=KernelBayesFilter(scales=(0.5,)), steps=1).fit(X[:40], Z[:40])
        summary = filt.summary()
        assert "by gradient after a search" in str(summary.setting("lam"))
        assert "correction" in summary.details
        assert summary.kind == "RefinedFilter"
        filt.save(tmp_path / "refined.ckpt")
        assert RefinedFilter.load(tmp_path / "refined.ckpt").summary().settings == summary.settings
        assert len(repr(filt)) < 200

    @pytest.mark.filterwarnings("ignore::Warning")
    @pytest.mark.parametrize("kind", [LearnedFilter, LSTMFilter, GRUFilter])
    def test_networks(self, kind, tmp_path, capsys):
        few = {"n_fourier": 32} if kind is LearnedFilter else {"hidden": 4}
        filt = kind(encoder=MLP, epochs=2, val_every=2, **few)
        filt.fit(X[:60], Z[:60], folder=tmp_path, progress=True, trainer=QUIET)
        assert "2/2" in capsys.readouterr().err
        summary = filt.summary()
        assert summary.seconds > 0
        assert "kept epoch" in repr(summary)
        assert "MLP" in summary.method
        assert set(summary.rmse) == {"z_1", "z_2"}
        if kind is LearnedFilter:
            assert summary.setting("lam").source == "searched"
        loaded = kind.load(tmp_path / "checkpoints" / "best.ckpt").summary()
        assert loaded.rmse == pytest.approx(summary.rmse)
        again = pickle.loads(pickle.dumps(filt))
        assert repr(pickle.loads(pickle.dumps(kind()))) == repr(kind())
        assert again.summary().settings == summary.settings
        torch.testing.assert_close(again.filter(X_TEST).mean, filt.filter(X_TEST).mean)


@pytest.mark.filterwarnings("ignore::Warning")
def test_training_is_quiet_unless_asked(capfd):
    """Lightning's own bars, a line an epoch in a notebook, are not shown."""
    LearnedFilter(encoder=MLP, epochs=1, val_every=1, n_fourier=32).fit(X[:40], Z[:40])
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_embeddings_and_posteriors_of_simulators_are_a_line():
    assert repr(Embedding.from_samples(Z)) == "Embedding(120 points in 2 dimension(s))"
    several = Embedding(torch.zeros(4, 2), torch.ones(3, 4))
    assert repr(several) == "Embedding(3 x 4 points in 2 dimension(s))"
    text = repr(posterior_from_simulations(Z, X, X_TEST[0]))
    assert re.fullmatch(
        r"SimulationPosterior\(mean \[\S+, \S+\], sd \[\S+, \S+\]; 120 simulations, effective "
        r"sample size \d+\)",
        text,
    )


def test_a_bar_counts_the_trials(capsys):
    KernelBayesFilter(scales=(0.5, 1.0), lams=(0.1,)).fit(X[:60], Z[:60], progress=True)
    assert "2 trials" in capsys.readouterr().err
    seen = []

    def shown(trials):
        for trial in trials:
            seen.append(trial)
            yield trial

    KernelBayesFilter(scales=(0.5, 1.0), lams=(0.1,)).fit(X[:60], Z[:60], progress=shown)
    assert len(seen) == 2
    with pytest.raises(KbrError, match="True, False or a function"):
        KernelBayesFilter().fit(X, Z, progress="yes")


def test_bytes_of_tensors_are_counted_once():
    table = torch.zeros(100, dtype=torch.float64)
    held = {"a": table, "b": [table[:50], (table.view(10, 10), np.zeros(10))]}
    assert tensor_bytes(held, lambda: table) == 880
