"""Filters on very many points: the same filter, from float32 tables filled block by block."""

import pytest
import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter, KuLSIF, OriginalRule
from kbr.app.models.announce import announce
from kbr.core import tables
from kbr.core.datasets.dynamics import Rotation
from kbr.core.errors import KbrError
from kbr.core.features import Identity, PivotedCholesky
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engines import large
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.io import memory

LENGTHS = (170, 90, 140)


@pytest.fixture
def everything_large(monkeypatch):
    """Thresholds low enough for tests, and blocks that end inside sequences."""
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(large, "RECENT", 250)
    monkeypatch.setattr(tables, "ROWS", 64)


def sequences(seed=0, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(seed)
    pairs = [Rotation().sample(length, generator) for length in lengths]
    return [x for x, _ in pairs], [z for _, z in pairs]


def fixed(rule=None, **settings):
    """Without a correction of means, which filters of very many points have not."""
    rule = rule or ImportanceWeightedRule(lam=1e-2)
    return KernelBayesFilter(rule=rule, eta=1e-4, scales=(1.0,), correction=None, **settings)


def test_same_beliefs_as_the_ordinary_filter(monkeypatch):
    """Filtering, missing observations and smoothing agree to the precision of float32 tables."""
    x, z = sequences()
    x_test, _ = Rotation().sample(30, torch.Generator().manual_seed(9))
    x_test[10:13] = torch.nan
    exact = fixed().fit(x, z)
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(tables, "ROWS", 64)
    made = fixed().fit(x, z)
    assert made.operators.phi.dtype == made.operators.update.mixing.dtype == torch.float32
    assert not hasattr(made.operators, "prediction")
    for run in ("filter", "smooth"):
        found, truth = getattr(made, run)(x_test), getattr(exact, run)(x_test)
        torch.testing.assert_close(found.mean, truth.mean, rtol=0, atol=2e-4)
        torch.testing.assert_close(found.raw_cov, truth.raw_cov, rtol=0, atol=2e-4)
        assert found.mean.dtype == torch.float64
    step = made.step(made.init(), x_test[0])
    torch.testing.assert_close(step.mean, made.filter(x_test[:1]).mean[0], rtol=0, atol=1e-6)


def test_smoothing_in_blocks_of_steps_is_smoothing(monkeypatch):
    x, z = sequences()
    x_test, _ = Rotation().sample(17, torch.Generator().manual_seed(9))
    made = fixed().fit(x, z)
    whole = made.smooth(x_test).mean
    monkeypatch.setattr("kbr.core.filters.kernel.run.NUMBERS", 5 * sum(LENGTHS))
    torch.testing.assert_close(made.smooth(x_test).mean, whole, rtol=0, atol=1e-12)


def test_sums_over_steps_never_cross_a_border(everything_large):
    x, z = sequences()
    operators = fixed().fit(x, z).operators
    before, after = transition_pairs(LENGTHS)
    phi = operators.phi.double()
    early, late = phi[before], phi[after]
    for found, truth in (
        (operators.sums.total, phi.mT @ phi),
        (operators.sums.early, early.mT @ early),
        (operators.sums.late, late.mT @ late),
        (operators.sums.cross, early.mT @ late),
    ):
        torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-5)


def test_pivots_of_a_subset_serve_all_points(everything_large, monkeypatch):
    x, z = sequences()
    monkeypatch.setattr(large, "SUBSET", 150)
    operators = fixed().fit(x, z).operators
    left_out = 1 - operators.phi.double().square().sum(-1)
    assert float(left_out.abs().max()) < 1e-3  # k(z, z) = 1


def test_a_rank_that_is_asked_for_is_kept_and_one_that_is_cut_is_said(
    everything_large, monkeypatch
):
    x, z = sequences()
    monkeypatch.setattr(large, "OBSERVATION_RANK", 6)
    cut = fixed().fit(x, z).operators
    assert cut.update.features.train.shape[-1] == 6
    (note,) = cut.notes
    assert note.startswith("rank of x cut at 6 of 400 points; largest residual ")
    assert note.endswith("pass kernel_x=PivotedCholesky(max_rank=...) for more")
    rule = ImportanceWeightedRule(lam=1e-2, kernel_x=PivotedCholesky(max_rank=40))
    asked = fixed(rule).fit(x, z).operators
    assert asked.update.features.train.shape[-1] == 40
    assert asked.notes == ()
    monkeypatch.setattr(large, "OBSERVATION_RANK", 399)
    assert fixed().fit(x, z).operators.notes == ()


@pytest.mark.parametrize(
    "rule",
    [
        ImportanceWeightedRule(lam=1e-4),
        ImportanceWeightedRule(lam=1e-2, kernel_x=Identity()),
        OriginalRule(lam=1e-6),
    ],
)
def test_updates_that_are_not_compressed(monkeypatch, rule):
    x, z = sequences()
    x_test, _ = Rotation().sample(10, torch.Generator().manual_seed(9))
    exact = fixed(rule, engine="low_rank").fit(x, z).filter(x_test).mean
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(tables, "ROWS", 64)
    made = fixed(rule, engine="low_rank").fit(x, z)
    assert made.operators.update.name == "low_rank"
    torch.testing.assert_close(made.filter(x_test).mean, exact, rtol=0, atol=2e-3)


def test_data_sets_fitted_together_are_fitted_apart(everything_large):
    x, z = Rotation().sample(120, torch.Generator().manual_seed(0), (2,))
    x_test, _ = Rotation().sample(8, torch.Generator().manual_seed(9), (2,))
    together = fixed().fit(x, z).filter(x_test).mean
    for k in range(2):
        alone = fixed().fit(x[k], z[k]).filter(x_test[k]).mean
        torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-4)


def test_hyper_parameters_are_chosen_on_the_last_steps(everything_large, monkeypatch):
    """Ridges too small for the compressed update are not among those tried."""
    x, z = sequences()
    made = KernelBayesFilter(scales=(0.7, 1.4), standardize=False).fit(x, z)
    few = KernelBayesFilter(scales=(0.7, 1.4), lams=(1e-4, 1e-3, 1e-2, 1e-1), standardize=False)
    monkeypatch.setattr(large, "LARGE", 10**6)
    few.fit([x[0][150:], x[1], x[2]], [z[0][150:], z[1], z[2]])
    for name in ("scale_z", "lam"):
        assert float(getattr(made.choice, name)) == pytest.approx(float(getattr(few.choice, name)))
    assert float(made.choice.val_mse) == pytest.approx(float(few.choice.val_mse), rel=0.01)


def test_calibration_needs_no_second_filter(everything_large, monkeypatch):
    x, z = Rotation().sample(900, torch.Generator().manual_seed(0))
    build, made = Fitted.build, []
    monkeypatch.setattr(Fitted, "build", lambda *parts: made.append(0) or build(*parts))
    calibration = fixed().fit(x, z).calibration
    assert len(made) == 1
    assert max(calibration.counts) <= 200
    assert bool(calibration.scores.isfinite().all())


def saved_loaded_and_compressed(count, folder):
    """A filter of `count` sequences of 300 steps."""
    x, z = Rotation().sample(300, torch.Generator().manual_seed(0), (count,))
    x_test, z_test = Rotation().sample(20, torch.Generator().manual_seed(9))
    made = fixed().fit(list(x.unbind()), list(z.unbind()))
    assert made.operators.phi.dtype == torch.float32
    made.save(folder / "filter.ckpt")
    loaded = KernelBayesFilter.load(folder / "filter.ckpt")
    answer = made.filter(x_test).mean
    assert torch.equal(loaded.filter(x_test).mean, answer)
    small = made.compress(60, x=x_test, z=z_test)
    assert small.operators.n <= 60
    assert (small.filter(x_test).mean - answer).square().sum(-1).mean() < 0.02
    with pytest.raises(KbrError, match="compress"):
        made.export(folder / "step.pt2")


def test_save_load_and_compress(everything_large, tmp_path):
    saved_loaded_and_compressed(4, tmp_path)


@pytest.mark.slow
def test_save_load_and_compress_30_000_points(tmp_path):
    """With the thresholds as they are."""
    saved_loaded_and_compressed(100, tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"engine": "active_set"}, "active_set"), ({"rule": "known"}, "TransitionRatio")],
)
def test_what_needs_n_by_n_tables_is_refused(everything_large, settings, words):
    if settings.get("rule") == "known":
        ratio = TransitionRatio(model=Rotation().state_space())
        settings = {"rule": ImportanceWeightedRule(lam=1e-2, ratio=ratio)}
    with pytest.raises(KbrError, match=words):
        fixed(**settings).fit(*sequences())


def test_a_filter_that_does_not_fit_memory_is_refused(everything_large, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device=None: 1e5)
    with pytest.raises(KbrError, match=r"n_train.*trials"):
        fixed().fit(*sequences())
    with pytest.raises(KbrError, match=r"1,000,000.*GB.*Lower data.n_train"):
        announce(10**6, 1, quiet=True)


def test_a_long_job_is_announced(capsys, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device=None: 1e12)
    announce(1000, 1, quiet=False)
    assert capsys.readouterr().out == ""
    announce(10**6, 1, quiet=False)
    assert "n = 1,000,000: about 2." in capsys.readouterr().out


def test_memory_limits_of_the_system(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2000 kB\n")
    assert memory._unused(tmp_path / "meminfo") == 2000 * 1024
    assert memory._unused(tmp_path / "absent") == float("inf")
    for name, text in (("max", "1000"), ("current", "700"), ("stat", "inactive_file 50\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    group = (tmp_path, "memory.max", "memory.current", "inactive_file")
    assert memory._left(*group) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left(*group) == float("inf")


def test_products_with_float32_tables(monkeypatch):
    """Block by block and in float64 where they sum; float64 tables are plain products."""
    monkeypatch.setattr(tables, "ROWS", 32)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, 101, 5, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, 3, 101, generator=generator, dtype=torch.float64)
    coords = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    wide = table.unsqueeze(-3)
    gram = (wide * weights.unsqueeze(-1)).mT @ wide
    for function, small, truth in (
        (tables.at_rows, coords, coords @ table.mT),
        (tables.sum_rows, weights, weights @ table),
        (tables.weighted_gram, weights, gram),
    ):
        torch.testing.assert_close(function(small, table), truth)
        found = function(small, table.float())
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)


def test_ratio_given_by_its_estimator(everything_large):
    """eta of the rule's own ratio is used as it is."""
    rule = ImportanceWeightedRule(lam=1e-2, ratio=KuLSIF(eta=1e-3))
    made = KernelBayesFilter(rule=rule, scales=(1.0,)).fit(*sequences())
    assert float(made.choice.eta) == 1e-3


@pytest.mark.parametrize("work", [1, 2**30])
def test_rows_without_weight_are_left_out(monkeypatch, work):
    """With a weight each, some and none: the same product."""
    monkeypatch.setattr(tables, "WORK", work)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, 101, 5, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, 3, 101, generator=generator, dtype=torch.float64)
    weights *= (torch.arange(101) % torch.tensor([1, 3, 101])[:, None] == 0) * 1.0
    weights[1, 2] = 0.0
    truth = torch.einsum("bnd,bsn,bne->bsde", table, weights, table)
    torch.testing.assert_close(tables.weighted_gram(weights, table), truth)


def test_compression_of_many_points_knows_the_size_of_features():
    """Features of a network are longer than one; what is left out stays below the ridge."""
    generator = torch.Generator().manual_seed(7)
    x = 30 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    x, lam = x * torch.logspace(0, -3, 4, dtype=torch.float64), 1e-2
    features = Identity().fit(x)
    update = large.tabulated(features, large._mixing("compressed", features, lam), x)
    ratio = torch.rand(1, 300, generator=generator, dtype=torch.float64)
    off = torch.linalg.eigvalsh(update.second(ratio)[0].double() - (x * ratio.mT).mT @ x)
    assert off.abs().max() < 0.2 * 300 * lam
