"""The linear correction of means: learned from unseen steps, the same in every way of filtering."""

from dataclasses import replace

import pytest
import torch

from kbr import KbrError, KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.kernel.choosing.validation import validation_block
from kbr.core.filters.kernel.correcting.correction import predicted_means
from kbr.core.filters.kernel.correcting.learning import correction_without, learn_correction
from kbr.core.filters.kernel.storing.export import ExportedStep
from kbr.core.filters.kernel.storing.storage import APART
from kbr.core.rules import ImportanceWeightedRule, OriginalRule

SMALL = {"scales": (0.7, 1.4), "lams": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def data():
    made = [Oscillatory().generate(n_train=90, n_test=20, seed=seed) for seed in (50, 51)]
    names = ("x_train", "z_train", "x_test", "z_test")
    return [torch.stack([getattr(one, name) for one in made]) for name in names]


@pytest.fixture(scope="module")
def alone(data):
    """Of one data set far from the origin, where its correction has something to do."""
    return KernelBayesFilter(**SMALL).fit(data[0][1], data[1][1] + 5)


def shrinking(lam=0.3, **settings):
    """The paper's rule, which shrinks latents far from zero."""
    rule = ImportanceWeightedRule(normalize=False, lam=lam)
    return KernelBayesFilter(rule=rule, scales=(0.7,), **settings)


def test_a_huge_ridge_changes_nothing(data):
    fitted = KernelBayesFilter(**SMALL, correction=None).fit(data[0], data[1]).fitted
    correction, _ = learn_correction(fitted, ridge=1e12)
    result = fitted.filtered(data[2])
    before = predicted_means(fitted.operators, result)
    shift = correction.shift(result.mean, before, data[2], result.evidence)
    torch.testing.assert_close(shift, torch.zeros_like(shift), rtol=0, atol=1e-8)


def test_it_finds_a_bias_of_the_filter(data):
    x, z, x_test, z_test = (part[0] for part in data)

    def error(filt):
        mean = filt.fit(x, z + 5).filter(x_test).mean
        return float((mean - z_test - 5).square().sum(-1).mean())

    assert error(shrinking(correction=1.0)) < 0.5 * error(shrinking())


def test_it_is_learned_from_steps_that_the_filter_did_not_see(data):
    """Its coefficients are those of a regression on blocks filtered by filters of the rest."""
    x, z = data[0][0], data[1][0] + 5
    base = shrinking(1e-2, eta=1e-3, standardize=False)
    correction, _ = learn_correction(base.fit(x, z).fitted, ridge=1.0)
    rows, missed = [], []
    for a, b in ((0, 30), (30, 60), (60, 90)):
        parts = [part for part in (slice(0, a), slice(b, 90)) if part.start < part.stop]
        other = replace(base).fit([x[part] for part in parts], [z[part] for part in parts])
        result, belief, before = other.filter(x[a:b]), other.init(), []
        for row in x[a:b]:
            before.append(belief.mean if belief.steps == 0 else other.forecast(belief).mean)
            belief = other.step(belief, row)
        ones, there = torch.ones(b - a, 1), result.evidence.unsqueeze(-1)
        rows.append(torch.cat([result.mean, torch.stack(before), x[a:b], ones], -1) * there)
        missed.append((z[a:b] - result.mean) * there)
    design, target = torch.cat(rows), torch.cat(missed)
    size = design.square().mean(0).sqrt()
    scaled = design / size
    solved = torch.linalg.solve(scaled.mT @ scaled + torch.eye(len(size)), scaled.mT @ target)
    expected = solved / size.unsqueeze(-1)
    torch.testing.assert_close(correction.coefficients, expected, rtol=1e-4, atol=1e-6)


def test_steps_and_whole_sequences_and_batches_agree(data):
    """Also where an observation is missing, and between data sets alone and together."""
    filt = KernelBayesFilter(**SMALL).fit(data[0], data[1])
    used = filt.fitted.data.correction.coefficients
    assert bool((used != 0).any())
    x = data[2].clone()
    x[:, 7] = torch.nan
    result, belief = filt.filter(x), filt.init()
    for t in range(x.shape[1]):
        belief = filt.step(belief, x[:, t])
        torch.testing.assert_close(belief.mean, result.mean[:, t])
        torch.testing.assert_close(belief.cov, result.cov[:, t])
    one = KernelBayesFilter(**SMALL).fit(data[0][1], data[1][1])
    torch.testing.assert_close(one.filter(x[1]).mean, result.mean[1], rtol=0, atol=1e-6)


def test_a_prediction_is_not_corrected(data, alone):
    x = data[2][1].clone()
    x[7] = torch.nan
    plain = KernelBayesFilter.of(alone.fitted.changed(correction=None))
    mine, theirs = alone.filter(x), plain.filter(x)
    torch.testing.assert_close(mine.mean[7], theirs.mean[7])
    assert not torch.allclose(mine.mean[8], theirs.mean[8])
    moves = mine.mean - theirs.mean  # those of smoothed means: at the end, both are the same belief
    torch.testing.assert_close(alone.smooth(x).mean, plain.smooth(x).mean + moves)
    belief = alone.step(alone.init(), x[0])
    ahead = alone.forecast(belief, steps=2)
    assert ahead.shift is None
    assert not torch.allclose(belief.mean, plain.step(plain.init(), x[0]).mean)
    torch.testing.assert_close(belief.embedding.mean, belief.mean)


def test_files_programs_and_fewer_points_are_corrected_alike(data, alone, tmp_path):
    x, expected = data[2][1], alone.filter(data[2][1]).mean
    alone.save(tmp_path / "filter.pt")
    again = KernelBayesFilter.load(tmp_path / "filter.pt")
    torch.testing.assert_close(again.filter(x).mean, expected)
    low = KernelBayesFilter(**SMALL, engine="low_rank").fit(data[0][1], data[1][1] + 5)
    low.export(tmp_path / "step.pt2")
    program = torch.export.load(tmp_path / "step.pt2").module()
    state = torch.zeros(ExportedStep(low.fitted).size, dtype=torch.float64)
    for row, mean in zip(x, low.filter(x).mean, strict=True):
        state, told, _, _ = program(state, row.double())
        torch.testing.assert_close(told, mean, rtol=0, atol=1e-6)
    small = alone.compress(90)
    assert small.fitted.data.correction is not None
    torch.testing.assert_close(small.filter(x).mean, expected, rtol=0, atol=0.02)


def test_error_bars_are_measured_on_corrected_means(data):
    """Of steps that neither the filter nor its correction has seen."""
    x, z = data[0][0], data[1][0] + 5
    plain, better = shrinking().fit(x, z), shrinking(correction=1.0).fit(x, z)
    assert float(better.filter(x).cov.sum()) < 0.7 * float(plain.filter(x).cov.sum())


def test_gain_on_fresh_data():
    """On 8 seeds that nothing was chosen on, means are closer to the truth on the whole."""
    made = [Rotation().generate(n_train=200, n_test=200, seed=seed) for seed in range(7000, 7008)]
    names = ("x_train", "z_train", "x_test", "z_test")
    x, z, x_test, z_test = (torch.stack([getattr(one, name) for one in made]) for name in names)
    filt = KernelBayesFilter().fit(x, z)
    plain = KernelBayesFilter.of(filt.fitted.changed(correction=None))
    errors = [(f.filter(x_test).mean - z_test).square().sum(-1).mean() for f in (filt, plain)]
    assert errors[0] < 0.99 * errors[1]


def test_rules_to_the_letter_are_left_as_they_are(data):
    for rule in (ImportanceWeightedRule(normalize=False), OriginalRule()):
        filt = KernelBayesFilter(rule=rule, **SMALL).fit(data[0][0], data[1][0])
        assert filt.fitted.data.correction is None
        assert "correction" not in str(filt.summary())


def test_where_none_can_be_learned_the_summary_says_so(data, alone):
    x, z = data[0][0], data[1][0]
    few = KernelBayesFilter(**SMALL).fit(x[:30], z[:30])
    assert "none with fewer than 45" in str(few.summary())
    assert "linear, of means" in str(alone.summary())
    u = torch.sin(torch.arange(len(x))).unsqueeze(-1)
    driven = KernelBayesFilter(**SMALL).fit(x, z, u=u)
    assert "none with control inputs" in str(driven.summary())
    with pytest.raises(KbrError, match="with control inputs"):
        KernelBayesFilter(**SMALL, correction=1.0).fit(x, z, u=u)
    with pytest.raises(KbrError, match="correction"):
        KernelBayesFilter(correction=-1.0)


def test_a_correction_without_the_validation_block_is_learned_once(data, alone):
    """What tells whether a correction helps is what error bars are measured with."""
    fitted = alone.fitted
    block = validation_block(fitted.n)
    _, early = learn_correction(fitted, ridge=1.0)
    again = correction_without(fitted, block)
    torch.testing.assert_close(early[block].coefficients, again.coefficients)


def test_long_data_sets_are_taken_one_by_one_and_answer_as_alone():
    """Above APART steps: choices, corrections and error bars are those of each by itself."""
    made = [Rotation().generate(n_train=APART + 20, n_test=30, seed=seed) for seed in (60, 61)]
    names = ("x_train", "z_train", "x_test")
    x, z, x_test = (torch.stack([getattr(one, name) for one in made]) for name in names)
    both = KernelBayesFilter(**SMALL).fit(x.unsqueeze(0), z.unsqueeze(0))
    assert len(both.fitted.data.apart) == 2
    alone = KernelBayesFilter(**SMALL).fit(x[1], z[1])
    for name in ("scale_z", "lam"):
        assert float(getattr(both.choice, name)[0, 1]) == float(getattr(alone.choice, name))
    together, one = both.filter(x_test.unsqueeze(0)), alone.filter(x_test[1])
    torch.testing.assert_close(together.mean[0, 1], one.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(together.cov[0, 1], one.cov, rtol=1e-3, atol=1e-5)
    assert both.calibration.counts == alone.calibration.counts


def test_one_long_data_set_of_a_batch_answers_as_by_itself():
    made = Rotation().generate(n_train=APART + 20, n_test=30, seed=62)
    x, z = made.x_train, made.z_train
    batch = KernelBayesFilter(**SMALL).fit(x.unsqueeze(0), z.unsqueeze(0))
    alone = KernelBayesFilter(**SMALL).fit(x, z)
    one, other = batch.filter(made.x_test.unsqueeze(0)), alone.filter(made.x_test)
    torch.testing.assert_close(one.mean[0], other.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(one.cov[0], other.cov, rtol=1e-3, atol=1e-5)
