"""More pairs for a fitted filter: as a fit to all rows with the same features, in all its forms."""

import pickle
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import numpy as np
import pandas as pd
import pytest
import torch

from kbr import Gaussian, ImportanceWeightedRule, KbrError, KernelBayesFilter, OriginalRule
from kbr.core import tables
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.features import RandomFourier
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engine import ActiveSet, Compressed, Engine, LowRank
from kbr.core.filters.kernel.engines import large, local
from kbr.core.filters.kernel.engines.local import Local, LocalOperators
from kbr.core.filters.kernel.growing import more_rows
from kbr.core.filters.refined import RefinedFilter
from kbr.core.io import checkpoint
from kbr.training import MLP, LearnedFilter

N = 100  # rows of the fit
BORDERS = [0, 60, N, 115, 150]  # of the sequences in which the rows come


def rows(seed=0, n=BORDERS[-1]):
    return Rotation().sample(n, torch.Generator().manual_seed(seed))


def fixed(rule=None, **settings):
    """Nothing to search: a fit in no time."""
    rule = rule or ImportanceWeightedRule(lam=1e-2)
    settings = {"eta": 1e-3, "scales": (0.7,), "widths": (1.5,), "correction": None, **settings}
    return KernelBayesFilter(rule=rule, **settings)


def pieces(values, start, stop):
    return [values[a:b] for a, b in pairwise(BORDERS[start : stop + 1])]


def grown(filt, x, z):
    """Two sequences in `fit`, one more in each of two calls."""
    filt.fit(pieces(x, 0, 2), pieces(z, 0, 2))
    return filt.partial_fit(*(pieces(part, 2, 3)[0] for part in (x, z))).partial_fit(
        *(pieces(part, 3, 4) for part in (x, z))
    )


def answers(filt, x):
    """Means and raw covariances of all that a filter answers: before calibration."""
    filt = KernelBayesFilter.of(filt.fitted.changed(smoothing=filt.calibration))
    belief = filt.init()
    for row in x[:4]:
        belief = filt.step(belief, row)
    made = (filt.filter(x), belief, filt.smooth(x), filt.forecast(belief, 3))
    return [part for one in made for part in (one.mean, one.raw_cov)]


def agree(one, other, x, atol=1e-8):
    for a, b in zip(answers(one, x), answers(other, x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def anew(filt):
    """The filter with tables and sums of all rows, written out from its features alone."""
    data, now = filt.fitted.data, filt.operators
    x, z, n = data.observed.double(), data.z, data.z.shape[-2]
    steps = [k for a, b in pairwise(BORDERS) for k in range(a, b - 1)]
    phi, early = filt.fitted.latents.function(z), torch.tensor(steps)
    before, after = phi[early], phi[early + 1]
    eye, k = torch.eye(phi.shape[-1], dtype=phi.dtype), len(steps)
    ridged = torch.linalg.cholesky(before.mT @ before / k + data.choice.lam_transition * eye)
    sums = (phi.mT @ phi, before.mT @ before, after.mT @ after, before.mT @ after)
    update = now.update
    if isinstance(update, ActiveSet):
        update = ActiveSet(update.kernel, x, update.kernel(x, x))
    elif isinstance(update, Local):
        update = Local(update.kernel, x)
    else:
        psi = update.features.function(x)
        changed = {"features": replace(update.features, train=psi)}
        if isinstance(update, Compressed):
            # psi_i psi_i' ~ sum_q T_iq psi_q psi_q', the best in the norm of the squared kernel
            squares = [(update.pivots @ some.mT).square() for some in (update.pivots, psi)]
            changed["mixing"] = torch.linalg.solve(*squares).mT
        update = replace(update, **changed)
    operators = replace(
        now,
        update=update,
        readout=MomentsTable.of(z),
        phi=phi,
        sums=type(now.sums)(*sums),
        marginal=torch.linalg.cholesky(sums[0] / n + data.choice.eta * eye),
        ridged=ridged,
        transition=torch.cholesky_solve(sums[3] / k, ridged),
        before=early,
        after=early + 1,
    )
    if isinstance(now, LocalOperators):
        operators = replace(operators, near=filt.fitted.latents.function(now.cells.centres))
    return KernelBayesFilter.of(replace(filt.fitted, operators=operators))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"engine": "low_rank"}, LowRank),
        ({"engine": "compressed"}, Compressed),
        ({"engine": "active_set"}, ActiveSet),
        ({"engine": "local"}, Local),
        ({"rule": OriginalRule(lam=1e-3)}, LowRank),
    ],
    ids=["low_rank", "compressed", "active_set", "local", "original_rule"],
)
def test_every_engine_is_that_of_a_fit_to_all_rows_with_the_same_features(settings, kind):
    x, z = rows()
    made = grown(fixed(**settings), x, z)
    assert isinstance(made.operators.update, kind)
    assert made.operators.n == made.operators.phi.shape[-2] == BORDERS[-1]
    agree(made, anew(made), rows(1, 8)[0])


@pytest.mark.parametrize("engine", ["low_rank", "compressed", "local"])
def test_tables_of_very_many_points_grow(engine, monkeypatch):
    """Rows of tables in float32, those of new rows after those that were there."""
    for module, name, value in (
        (large, "LARGE", 80),
        (tables, "ROWS", 50),
        (local, "CELLS", 80),
    ):
        monkeypatch.setattr(module, name, value)
    x, z = rows()
    made = grown(fixed(engine=engine), x, z)
    assert made.operators.phi.dtype == torch.float32
    other, old = anew(made), made.operators
    kept = [(old.phi, other.operators.phi)]
    if engine != "local":
        kept.append((old.update.features.train, other.operators.update.features.train))
    for one, two in kept:
        torch.testing.assert_close(one.double(), two, rtol=0, atol=1e-6)
    for name, total in vars(other.operators.sums).items():  # in float64
        torch.testing.assert_close(getattr(old.sums, name), total, rtol=1e-10, atol=1e-8)
    agree(made, other, rows(1, 8)[0], atol=1e-4)  # as close as float32 tables are


@pytest.mark.parametrize(
    ("count", "scale", "name"), [(4, 0.7, "compressed"), (50, 2.0, "low_rank")]
)
def test_what_compression_leaves_out_is_kept_exactly(count, scale, name, tmp_path):
    """New rows in another place become pivots, or all features are used; weights stay sound."""
    x, z = rows()
    x, z = (torch.cat([part[: 150 - count], part[150 - count :] + 3]) for part in (x, z))
    kinds = ("compressed", "low_rank")
    made, exact = (fixed(engine=kind, scales=(scale,)).fit(x[:N], z[:N]) for kind in kinds)
    base = made.operators.update.base
    for filt in (made, exact):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows far off
            filt.partial_fit(x[N:130], z[N:130]).partial_fit(x[130:], z[130:])
    assert made.operators.update.name == name
    if name == "compressed":
        assert base + count <= made.operators.update.pivots.shape[-2] < 2 * base
    near = x[-8:] if count == 50 else rows(1, 8)[0]
    agree(made, exact, near, atol=1e-5)
    made.save(tmp_path / "filter.ckpt")
    agree(made, KernelBayesFilter.load(tmp_path / "filter.ckpt"), near)


def test_features_that_do_not_depend_on_data_make_it_fit_itself(tmp_path):
    """One sequence in three parts that go on: the filter of one `fit` to the whole."""
    x, z = rows()
    kernels = {
        f"kernel_{name}": RandomFourier(kernel=Gaussian(bandwidth=1.2), n_features=80)
        for name in "xz"
    }
    rule = ImportanceWeightedRule(lam=1e-2, **kernels)
    build = partial(fixed, rule, scales=None, widths=(2.0,), engine="low_rank", standardize=True)
    made = build().fit(x[:N], z[:N])
    for part in (slice(N, 120), slice(120, 150)):
        made.partial_fit(x[part], z[part], continues=True)
    whole = build().fit(x, z, units=made.units)
    assert made.fitted.data.lengths == whole.fitted.data.lengths == [150]
    agree(made, whole, rows(1, 8)[0])
    apart = build().fit(x[:N], z[:N]).partial_fit(x[N:], z[N:])
    agree(apart, build().fit([x[:N], x[N:]], [z[:N], z[N:]], units=made.units), rows(1, 8)[0])
    assert len(apart.operators.before) == len(whole.operators.before) - 1


def test_data_sets_fitted_together_grow_together():
    pairs = [rows(seed) for seed in (0, 1)]
    x, z = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    test = torch.stack([rows(seed, 12)[0] for seed in (2, 3)])
    both = fixed(engine="low_rank").fit(x[:, :N], z[:, :N])
    both.partial_fit(x[:, N:], z[:, N:], continues=True)
    for k, (one_x, one_z) in enumerate(pairs):
        one = fixed(engine="low_rank").fit(one_x[:N], one_z[:N])
        one.partial_fit(one_x[N:], one_z[N:], continues=True)
        torch.testing.assert_close(both.filter(test).mean[k], one.filter(test[k]).mean)
    with pytest.raises(KbrError, match=r"holds 2 data sets: pass z \[2, 'T', 'dz'\]"):
        both.partial_fit(pairs[0][0], pairs[0][1])


def test_files_copies_and_old_files(tmp_path):
    """Features come from the rows of the fit, also in a filter that is loaded and goes on."""
    x, z = rows()
    made, path, test = grown(fixed(), x, z), tmp_path / "filter.ckpt", rows(1, 8)[0]
    made.save(path)
    agree(made, KernelBayesFilter.load(path), test)
    agree(made, pickle.loads(pickle.dumps(made)), test)
    other = fixed().fit(pieces(x, 0, 2), pieces(z, 0, 2))
    other.save(path)
    content = checkpoint.load(path, kind="kbr.kernel_filter")
    assert "basis" not in content["filter"]  # as files of before: features of all rows
    loaded = KernelBayesFilter.load(path)
    loaded.partial_fit(x[N:115], z[N:115]).partial_fit([x[115:]], [z[115:]])
    agree(made, loaded, test)
    broken = {**made.state(), "basis": 10**6}
    with pytest.raises(KbrError, match="do not fit together"):
        fixed().restore(broken)


def test_calibration_stays_also_where_it_is_measured_later():
    x, z = rows()
    first = fixed().fit(x[:N], z[:N])
    made = fixed().fit(x[:N], z[:N]).partial_fit(x[N:], z[N:])
    for name in ("calibration", "smoothing_calibration"):
        old, new = getattr(first, name), getattr(made, name)
        for part in ("blend", "errors", "scores"):
            torch.testing.assert_close(getattr(old, part), getattr(new, part))
    assert torch.equal(made.fitted.reach.limit, first.fitted.reach.limit)


def test_a_stream_goes_on_over_new_rows():
    """Beliefs live in features, which stay; one of no step has weights on the old rows alone."""
    x, z = rows()
    made = fixed().fit(x[:N], z[:N])
    start, belief = made.init(), made.step(made.init(), x[N])
    before = made.step(belief, x[N + 1]).mean
    made.partial_fit(x[N:], z[N:])
    after = made.step(belief, x[N + 1])
    assert after.weights.shape[-1] == 150
    torch.testing.assert_close(after.mean, before, rtol=0, atol=0.2)
    with pytest.raises(KbrError, match=r"before partial_fit.*init\(\)"):
        made.step(start, x[N])
    with pytest.raises(KbrError, match="before partial_fit"):
        made.forecast(start)


def driven(seed, n):
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    angle = (0.2 + u).cumsum(0)
    z = torch.cat([angle.cos(), angle.sin()], -1)
    return z + 0.3 * torch.randn(z.shape, generator=generator, dtype=torch.float64), z, u


def test_controls_move_the_new_rows_too():
    """Sums over lifted features are those of all steps; backwards it is the same filter too."""
    (x, z, u), (x_test, _, u_test) = driven(0, 150), driven(1, 15)
    made = fixed().fit(x[:N], z[:N], u=u[:N])
    made.partial_fit(x[N:120], z[N:120], u=u[N:120], continues=True)
    made.partial_fit([x[120:]], [z[120:]], u=[u[120:]])
    now, data = made.operators, made.fitted.data
    assert data.lengths == [120, 30]
    torch.testing.assert_close(
        now.lift.u, made.units.u.scaling.apply(u[[*range(1, 120), *range(121, 150)]])
    )
    before = torch.tensor([*range(119), *range(120, 149)])
    chi = now.lift(now.phi[before], now.lift.u)
    other = replace(
        now,
        lift=replace(now.lift, rows=chi),
        sums=replace(now.sums, early=chi.mT @ chi, cross=chi.mT @ now.phi[before + 1]),
    )
    for name in ("early", "cross"):
        torch.testing.assert_close(getattr(now.sums, name), getattr(other.sums, name))
    again = KernelBayesFilter.of(replace(made.fitted, operators=other))
    for run in ("filter", "smooth"):
        one, two = (getattr(f, run)(x_test, u=u_test) for f in (made, again))
        torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e-8)
    with pytest.raises(KbrError, match="control inputs"):
        made.partial_fit(x, z)
    lost = u.clone()
    lost[0] = torch.nan
    with pytest.raises(KbrError, match="u has missing values"):
        made.partial_fit(x, z, u=lost, continues=True)
    with pytest.warns(UserWarning, match="u of .* lie where there were none"):
        made.partial_fit(x, z, u=u + 50)


@pytest.mark.parametrize("last", [N, 2])
def test_history_and_velocity_reach_back_over_the_border(last):
    """Rows that go on have the windows and differences of one recording; scales are the first's."""
    x, z = rows()
    begin = N - last  # the last sequence of the fit may be shorter than a window
    parts = [[rows[:begin], rows[begin:N]] if begin else rows[:N] for rows in (x, z)]
    made = fixed(history=3, velocity=True).fit(*parts)
    made.partial_fit(x[N:], z[N:], continues=True)
    data, inner = made.fitted.data, made.units.x.apply(x)
    assert data.x.shape == (150, 6)
    assert data.z.shape == (150, 4)
    for back in range(3):
        found = data.x[N + max(back - last, 0) :, 2 * back : 2 * back + 2]
        torch.testing.assert_close(found, inner[N + max(back - last, 0) - back : 150 - back])
    steps, first = data.z[:, :2].diff(dim=0), data.z[1:, 2:]
    slope = (first[0] - first[1]) / (steps[0] - steps[1])  # rates are linear in differences
    expected = first[0] + slope * (steps[N - 1 :] - steps[0])
    torch.testing.assert_close(data.z[N:, 2:], expected, rtol=0, atol=1e-9)


def test_time_is_cut_as_the_first_fit_cut_it():
    x, z = rows()
    time = np.arange(150.0)
    made = fixed().fit(x[:N], z[:N], time=time[:N])
    late = 10 * np.arange(50.0)  # usual steps among themselves, gaps for this filter
    with pytest.warns(UserWarning, match=r"49 longer one\(s\) as gaps"):
        made.partial_fit(x[N:], z[N:], time=late)
    assert made.fitted.data.lengths == [N] + [1] * 50
    uneven = np.cumsum(np.random.default_rng(0).integers(1, 5, 150)).astype(float)
    moved = fixed().fit(x[:N], z[:N], time=uneven[:N], time_steps="input")
    assert moved.units.u.time
    moved.partial_fit(
        x[N:120], z[N:120], time=np.arange(0.0, 40.0, 2.0)
    )  # even, but an input still
    assert moved.operators.lift.u.shape == (N - 1 + 19, 1)
    with pytest.raises(KbrError, match="does not keep the time"):
        moved.partial_fit(x[120:], z[120:], time=uneven[120:], continues=True)
    with pytest.raises(KbrError, match="pass time"):
        moved.partial_fit(x[120:], z[120:])


def test_what_features_do_not_reach_is_said_once():
    x, z = rows()
    made = fixed(engine="low_rank").fit(x[:N], z[:N])
    made.partial_fit(x[N:120], z[N:120])  # like the others: no warning, which would be an error
    far = torch.cat([z[120:], z[120:] + 40])
    with pytest.warns(UserWarning, match="of 60 new rows, z of 30 lie where there were none"):
        made.partial_fit(torch.cat([x[120:], x[120:]]), far)
    with pytest.warns(UserWarning, match="of 30 new rows, z of 30 lie"):
        made.partial_fit(x[120:], z[120:] - 40)  # as it was when some of them were known before
    with pytest.warns(UserWarning, match="of 30 new rows, x of 30 lie"):
        made.partial_fit(x[120:] - 1e3, z[120:])
    assert bool(made.fitted.reach(made.fitted.data.observed[-1:]))  # known by now, if badly


@dataclass(frozen=True, eq=False)
class Whole(Engine):
    """An engine of one's own, whose update cannot grow."""

    def build(self, features, x, *, lam):
        made = LowRank(features.fit(x))

        class Rigid:
            name = "rigid"
            observe, weights = made.observe, made.weights

        return Rigid()


def test_what_cannot_grow_is_refused_in_words(monkeypatch):
    x, z = rows()
    first, more = (x[:N], z[:N]), (x[N:], z[N:])
    made = fixed().fit(*first)
    with pytest.raises(KbrError, match="compressed filter has no longer"):
        made.compress(20).partial_fit(*more)
    with pytest.raises(KbrError, match="circular was settled by the first fit"):
        made.partial_fit(*more, circular="z_1")
    with pytest.raises(KbrError, match=r"x has 2 column|shape \[2\]"):
        made.partial_fit(torch.cat([more[0]] * 2, -1), more[1])
    with pytest.raises(KbrError, match=r"z has 2 column"):
        made.partial_fit(more[0], more[1][:, :1])
    plain = fixed(standardize=False).fit(*first)
    with pytest.raises(KbrError, match=r"x must have observations of shape \[2\]"):
        plain.partial_fit(more[0][:, :1], more[1])
    with pytest.raises(KbrError, match=r"z must have shape \['T', 2\]"):
        plain.partial_fit(more[0], more[1][:, :1])
    with pytest.raises(KbrError, match=r"method grown\(x, lam\)"):
        fixed(engine=Whole()).fit(*first).partial_fit(*more)
    monkeypatch.setattr("kbr.core.filters.kernel.filter.MEDIUM", 50)
    monkeypatch.setattr(more_rows, "MEDIUM", 50)
    several = fixed().fit(list(x[:N].split(20)), list(z[:N].split(20)))
    with pytest.raises(KbrError, match="in another order"):
        several.partial_fit(*more, continues=True)
    several.partial_fit(x[N:120], z[N:120]).partial_fit(x[120:], z[120:], continues=True)
    assert several.fitted.data.lengths[-1] == 50
    monkeypatch.setattr(large, "LARGE", 130)
    with pytest.raises(KbrError, match="active_set engine forms n x n"):
        fixed(engine="active_set").fit(*first).partial_fit(*more)
    assert made.operators.n == N  # a refusal leaves the filter as it was


def test_an_unfitted_filter_is_fitted_and_missing_rows_cut():
    x, z = (part.clone() for part in rows())
    made = fixed().partial_fit(x[:N], z[:N], circular=(), continues=True)
    assert made.fitted.data.basis is None
    x[N] = torch.nan
    with pytest.warns(UserWarning, match="1 of 50 training rows have missing values"):
        made.partial_fit(x[N:], z[N:], continues=True)  # not from the row before the missing one
    assert made.fitted.data.lengths == [N, 49]


def test_known_dynamics_take_more_points():
    task = Oscillatory()
    x, z = task.sample(120, torch.Generator().manual_seed(0))
    rule = ImportanceWeightedRule(ratio=TransitionRatio(model=task.state_space()), lam=1e-2)
    settings = {"engine": "active_set", "correction": None}
    build = partial(KernelBayesFilter, rule=rule, scales=(1.0,), **settings)
    made = build().fit(x[:80], z[:80]).partial_fit(x[80:], z[80:])
    bandwidth = made.operators.update.kernel.bandwidth
    whole = KernelBayesFilter(
        rule=replace(rule, kernel_x=Gaussian(bandwidth=bandwidth)),
        standardize=True,
        **settings,
    ).fit(x, z, units=made.units)
    torch.testing.assert_close(
        made.filter(x[:20]).mean, whole.filter(x[:20]).mean, rtol=0, atol=1e-8
    )


def test_a_grown_filter_is_compressed_and_exported(tmp_path):
    x, z = rows()
    made, test = grown(fixed(engine="low_rank"), x, z), rows(1, 8)[0]
    small = made.compress(200)
    torch.testing.assert_close(small.filter(test).mean, made.filter(test).mean, rtol=0, atol=1e-2)
    again = KernelBayesFilter.of(made.fitted.founding).compress(20)
    kernels = [f.settings.rule.kernel_x.bandwidth for f in (small, again)]
    torch.testing.assert_close(*kernels)
    made.export(tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    rank = made.operators.rank
    _, mean, _, _ = step(torch.zeros(rank + 9, dtype=torch.float64), test[0].double())
    torch.testing.assert_close(mean, made.filter(test[:1]).mean[0])


def test_refined_filters_pass_rows_on(tmp_path):
    x, z = Oscillatory().sample(120, torch.Generator().manual_seed(50))
    base = KernelBayesFilter(scales=(0.7,), lams=(1e-2,))
    made = RefinedFilter(base=base, steps=2).fit(x[:90], z[:90])
    made.partial_fit(x[90:], z[90:], continues=True)
    assert made.operators.n == 120
    made.save(tmp_path / "refined.ckpt")
    again = RefinedFilter.load(tmp_path / "refined.ckpt")
    torch.testing.assert_close(
        again.filter(x[:10]).mean, made.filter(x[:10]).mean, rtol=0, atol=1e-8
    )


@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
def test_learned_features_of_new_rows_join_the_kernel_filter(tmp_path):
    """The network stays: the kernel filter of its features of all rows; also from its file."""
    x, z = rows()
    encoder = partial(MLP, hidden=(8,), n_features=4)
    values = {"lams": (1e-2,), "scales": (0.7,), "etas": (1e-3,), "n_fourier": 16}
    made = LearnedFilter(encoder=encoder, epochs=2, val_every=2, **values)
    quiet = {"enable_progress_bar": False, "accelerator": "cpu", "devices": 1}
    made.partial_fit(x[:N], z[:N], trainer=quiet)
    first = made.kernel_filter.fitted.data
    lost = x[N:120].clone()
    lost[5] = 1e9  # larger than any of training: no observation
    with pytest.warns(UserWarning, match="1 of 20 training rows"):
        made.partial_fit(lost, z[N:120], continues=True)
    made.partial_fit([x[120:]], [z[120:]])
    data = made.kernel_filter.fitted.data
    assert data.lengths == [N + 5, 14, 30]
    psi, _, _ = made.encode(made.units.observations(x[120:]))
    torch.testing.assert_close(data.x[-30:], psi[0])
    assert torch.equal(data.x[:N], first.x)
    made.save(tmp_path / "learned.ckpt")
    again = LearnedFilter.load(tmp_path / "learned.ckpt")
    for run in ("filter", "smooth"):
        one, two = (getattr(filt, run)(x[:8]) for filt in (made, again))
        torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(one.cov, two.cov, rtol=0, atol=1e-8)
    assert again.kernel_filter.operators.n == N + 49


@pytest.fixture(scope="module")
def desk():
    """A recording nobody prepared: an angle, an offset of 1e6, text, dates."""
    rng = np.random.default_rng(0)
    heading = np.rad2deg(np.cumsum(0.1 + 0.05 * rng.normal(size=300))) % 360
    turn = np.deg2rad(heading)
    return pd.DataFrame(
        {
            "east": 1e6 + 3e3 * np.cos(turn) + 300 * rng.normal(size=300),
            "north": 1e-3 * np.sin(turn) + 1e-4 * rng.normal(size=300),
            "heading": heading,
            "note": ["text"] * 300,
            "time": pd.date_range("2024-05-01", periods=300, freq="s"),
        }
    )


def test_the_walk_of_someone_with_tables(desk, tmp_path):
    """Columns by name among others, in another order; a gap of time; an angle; a missing cell."""
    early, late = desk[:200], desk[200:].copy()
    seen = ["east", "north"]
    made = fixed().fit(early[seen], early[["heading"]], time=early["time"], circular="heading")
    late.loc[240, "north"] = None
    late.loc[270:, "time"] += pd.Timedelta(hours=1)
    shuffled = late[["note", "heading", "north", "time", "east"]]
    before = made.filter(desk[:30]).mean
    with pytest.warns(UserWarning, match=r"missing values|longer one\(s\) as gaps") as said:
        made.partial_fit(shuffled, shuffled, continues=True)
    assert len(said) == 1  # the gap is cut where the table states it
    assert made.fitted.data.lengths == [240, 29, 30]
    made.save(tmp_path / "filter.ckpt")
    again = KernelBayesFilter.load(tmp_path / "filter.ckpt")
    result = again.filter(desk[:30])
    torch.testing.assert_close(result.mean, made.filter(desk[:30]).mean, rtol=0, atol=1e-6)
    turn = torch.tensor(desk["heading"][:30].to_numpy()).unsqueeze(-1)
    missed = made.units.z.nearest(turn, result.mean) - result.mean
    assert float(missed.abs().median()) < 10
    assert float((before - result.mean).abs().median()) < 10
    with pytest.raises(KbrError, match="no column 'east'"):
        made.partial_fit(late[["north"]], late)
    with pytest.raises(KbrError, match="no column 'heading'"):
        made.partial_fit(late, late[seen])
    several = [late[:20], late[20:40]]
    assert made.partial_fit(several, several).fitted.data.lengths[-2:] == [20, 20]
    sequences = late[45:65].assign(sequence=["a"] * 10 + ["b"] * 10)
    assert made.partial_fit(sequences, sequences).fitted.data.lengths[-2:] == [10, 10]
