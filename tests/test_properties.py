"""Whatever array a user passes: an answer without NaN, or a KbrError that says what to change.

Arrays differ in shape, type, library, scale (1e-150 to 1e150), and may be constant, duplicated or
hold NaN and infinities. Values come from a seeded generator: an example is a few small choices.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbr import (
    Embedding,
    ExactRatio,
    Gaussian,
    Identity,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
    KuLSIF,
    Laplace,
    Linear,
    Matern32,
    Matern52,
    Mixture,
    Nystroem,
    OriginalRule,
    PerCoordinate,
    PivotedCholesky,
    RandomFourier,
    RuLSIF,
    posterior_from_simulations,
    posterior_from_simulator,
    tune_rule,
)
from kbr.core.uncertainty import regions as uncertainty
from kbr.core.uncertainty.calibration import calibrate

KERNELS = [Gaussian, Laplace, Matern32, Matern52, Linear, PerCoordinate]
MAPS = [PivotedCholesky, Nystroem, RandomFourier, Identity, Mixture]
SCALES = [1.0, 1e-3, 1e4, 1e-30, 1e30, 1e-150, 1e150]
TYPES = ["float64", "float32", "int64", "uint8", "bool"]


def check(examples: int):
    """Hypothesis, the same examples at every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def values(seed: int, shape: tuple[int, ...], scale: float, kind: str) -> np.ndarray:
    """float64 values of a kind, before their type."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=shape)
    if kind == "constant":
        drawn[...] = drawn.flat[0] if drawn.size else 0
    elif kind == "duplicated":
        drawn = drawn[np.arange(len(drawn)) // 2] if len(drawn) else drawn
    elif kind == "mixed":
        drawn = drawn * 10.0 ** rng.integers(-16, 1, size=shape)
    elif kind == "offset":
        drawn = drawn + 1e6
    return scale * drawn


def broken(array: np.ndarray, seed: int, bad: float | None) -> np.ndarray:
    """The array with one entry replaced."""
    if bad is not None and array.size:
        array = array.copy()
        array.flat[seed % array.size] = bad
    return array


def typed(array: np.ndarray, dtype: str, library: str) -> np.ndarray | torch.Tensor:
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
    return torch.as_tensor(made) if library == "torch" else made


kinds = st.sampled_from(["normal", "normal", "constant", "duplicated", "mixed", "offset"])
scales = st.sampled_from(SCALES)
seeds = st.integers(0, 50)
bads = st.sampled_from([None, None, None, np.nan, np.inf, -np.inf])
libraries = st.sampled_from(["numpy", "torch"])
types = st.sampled_from(TYPES)
sizes = st.integers(1, 9)
widths = st.integers(1, 3)


@st.composite
def arrays(draw, *, rows=None, columns=None, finite=False):
    """A user's array [rows, columns]; with `finite`, one without NaN or infinity."""
    shape = (draw(sizes) if rows is None else rows, draw(widths) if columns is None else columns)
    seed, kind, scale = draw(seeds), draw(kinds), draw(scales)
    bad = None if finite else draw(bads)
    dtype = draw(types)
    if finite and dtype == "float32" and scale > 1e30:
        scale = 1e30
    return typed(broken(values(seed, shape, scale, kind), seed, bad), dtype, draw(libraries))


@st.composite
def tensors(draw, *, rows=None, columns=None):
    """Finite floating-point points [rows, columns], as the core's own functions take them."""
    shape = (draw(sizes) if rows is None else rows, draw(widths) if columns is None else columns)
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    scale = draw(scales)
    if dtype == torch.float32:
        scale = min(max(scale, 1e-30), 1e30)
    return torch.as_tensor(values(draw(seeds), shape, scale, draw(kinds))).to(dtype)


def is_finite(array) -> bool:
    return bool(torch.isfinite(torch.as_tensor(array)).all())


def no_nan(*tensors) -> bool:
    return not any(bool(torch.as_tensor(t).isnan().any()) for t in tensors)


def answers(function):
    """The function's answer; None where it refuses, which it may only do by KbrError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\d+ of \d+ training rows have missing")
            return function()
    except KbrError:
        return None


@check(60)
@given(cls=st.sampled_from(KERNELS), a=tensors(columns=2), b=tensors(columns=2))
def test_kernels(cls, a, b):
    b = b.clamp(-1e30, 1e30).to(a.dtype)
    kernel = cls().fit(a)
    gram, cross = kernel(a, a), kernel(b, a)
    assert no_nan(gram, cross, kernel.anchored(a)(b), kernel.diagonal(a))
    if cls is not Linear:
        assert gram.min() >= 0
        assert gram.max() <= 1 + 1e-6
        assert cross.max() <= 1 + 1e-6
        assert (gram.diagonal() > 1 - 1e-6).all()


@check(60)
@given(cls=st.sampled_from(MAPS), a=tensors(columns=2), b=tensors(columns=2))
def test_feature_maps(cls, a, b):
    made = cls().fit(a)
    assert no_nan(made.train, made(b))
    assert is_finite(made.train)


@check(60)
@given(samples=arrays(), weights=arrays(columns=1), seed=seeds)
def test_embeddings(samples, weights, seed):
    weights = np.resize(np.asarray(weights), len(samples))
    for given_weights in (None, weights):
        made = answers(lambda w=given_weights: Embedding.from_samples(samples, w))
        if made is None:  # weights that are finite may not be so in the points' type
            assert given_weights is not None or not is_finite(samples)
            continue
        assert no_nan(made.effective_sample_size, made.nonnegative().weights)
        proper = made.nonnegative()
        assert no_nan(proper.mean, proper.cov, proper.sample(3), proper.mmd(proper))
        assert no_nan(proper.expect(lambda points: points > 0))
        if given_weights is None:
            assert no_nan(made.mean, made.cov)


@check(40)
@given(z=tensors(columns=2), prior=tensors(columns=2), seed=seeds)
def test_ratios(z, prior, seed):
    features = PivotedCholesky().fit(z)
    embedded = Embedding.from_samples(prior)
    for ratio in (
        KuLSIF(),
        KuLSIF(eta=1e-6),
        RuLSIF(eta=1e-3),
        ExactRatio(function=lambda points: torch.ones(points.shape[:-1])),
    ):
        assert is_finite(ratio(features, z, embedded))
    assert is_finite(KuLSIF().at(features, prior, embedded))


@st.composite
def pairs(draw, *, least=1, most=9):
    """x and z of one length, of any types; and two more observations."""
    n = draw(st.integers(least, most))
    columns = draw(widths)
    return (
        draw(arrays(rows=n, columns=columns)),
        draw(arrays(rows=n)),
        draw(arrays(rows=2, columns=columns)),
    )


RULES = [ImportanceWeightedRule, OriginalRule]


@check(60)
@given(cls=st.sampled_from(RULES), data=pairs(), prior=arrays(), lam=st.sampled_from([1e-8, 0.1]))
def test_rules(cls, data, prior, lam):
    x, z, query = data
    fitted = answers(lambda: cls(lam=lam).fit(x, z))
    if fitted is None:
        assert not (is_finite(x) and is_finite(z))
        return
    embedded = answers(lambda: Embedding.from_samples(prior))
    if embedded is None:
        return
    post = answers(lambda: fitted.posterior(query, embedded))
    if post is not None:
        assert no_nan(post.weights, post.mean, post.cov, post.effective_sample_size)


@check(15)
@given(data=pairs(least=1, most=6), prior=tensors(columns=2))
def test_tuning_of_rules(data, prior):
    x, z, query = data

    def tuned():
        found = tune_rule(ImportanceWeightedRule(), x, z, Embedding.from_samples(prior))
        return found, found.rule.fit(x, z).posterior(query, Embedding.from_samples(prior))

    made = answers(tuned)
    if made is not None:
        found, post = made
        assert is_finite(found.lam)
        assert is_finite(found.eta)
        assert no_nan(post.weights, post.mean)


FEW = {"scales": (1.0, 2.0), "lams": (1e-3, 1e-1), "etas": (1e-5, 1e-3)}


@check(40)
@given(
    data=pairs(least=1, most=14),
    test=arrays(rows=4),
    engine=st.sampled_from(["auto", "low_rank", "compressed", "active_set"]),
    rule=st.sampled_from(RULES),
)
def test_filters(data, test, engine, rule):
    """Fit, filter, smooth, step, forecast: finite input gives finite output."""
    x, z, _ = data
    filt = KernelBayesFilter(rule=rule(), engine=engine, **FEW)
    if answers(lambda: filt.fit(x, z)) is None:
        return
    for observations in (x, test):
        out = answers(lambda o=observations: (filt.filter(o), filt.smooth(o)))
        if out is None:
            continue
        for result in out:
            assert no_nan(result.mean, result.cov, result.states, result.effective_sample_size)
    belief = filt.init()
    for row in np.asarray(test):
        belief = answers(lambda b=belief, r=row: filt.step(b, r)) or belief
    ahead = filt.forecast(belief, steps=2)
    assert no_nan(belief.mean, belief.cov, ahead.mean, ahead.cov, ahead.effective_sample_size)
    region = answers(lambda: filt.credible_region(belief, level=0.9))
    if region is not None:
        assert no_nan(region.centre, region.shape, region.radius2)


@check(25)
@given(data=pairs(least=6, most=14), keep=st.integers(1, 20), rule=st.sampled_from(RULES))
def test_filters_saved_and_compressed(data, keep, rule):
    """What was fitted is saved and loaded to the same answers; a compressed one has no NaN."""
    x, z, _ = data
    filt = KernelBayesFilter(rule=rule(), **FEW)
    if answers(lambda: filt.fit(x, z)) is None:
        return
    out = filt.filter(x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "filter.ckpt"
        filt.save(path)
        assert torch.equal(KernelBayesFilter.load(path).filter(x).mean, out.mean)
    small = answers(lambda: filt.compress(keep))
    if small is not None:
        there = small.filter(x)
        assert no_nan(there.mean, there.cov)
        belief = small.step(small.init(), np.asarray(x)[0])
        assert no_nan(belief.mean, belief.cov)


@check(25)
@given(data=pairs(least=1, most=12), copies=st.integers(1, 3), cut=st.integers(0, 12))
def test_filters_on_several_data_sets_and_sequences(data, copies, cut):
    """A leading dimension, and lists of sequences of any lengths, empty ones too."""
    x, z, _ = (np.asarray(part) for part in data)
    several = KernelBayesFilter(**FEW)
    if answers(lambda: several.fit(np.stack([x] * copies), np.stack([z] * copies))) is not None:
        out = several.filter(np.stack([x] * copies))
        assert out.mean.shape == (copies, len(x), z.shape[-1])
        assert no_nan(out.mean, out.cov)
    parts = KernelBayesFilter(**FEW)
    if answers(lambda: parts.fit([x[:cut], x[cut:]], [z[:cut], z[cut:]])) is not None:
        assert no_nan(parts.filter(x).mean)


@st.composite
def moments(draw):
    """Means, covariances (perhaps singular) and truths [t, d]."""
    t, d = draw(sizes), draw(widths)
    scale = draw(scales)
    seed, kind = draw(seeds), draw(kinds)
    mean, z = (torch.as_tensor(values(seed + k, (t, d), scale, kind)) for k in (0, 1))
    root = torch.as_tensor(values(seed + 2, (t, d, draw(sizes)), 1.0, "normal"))
    return mean, root @ root.mT * scale * scale, z


@check(60)
@given(data=moments())
def test_uncertainty_of_moments(data):
    mean, cov, z = data
    region = uncertainty.credible_region(mean, cov, level=0.9)
    assert no_nan(region.log_volume, region.contains(z), uncertainty.coverage(mean, cov, z))
    assert no_nan(uncertainty.gaussian_crps(mean, cov, z), uncertainty.gaussian_pit(mean, cov, z))
    assert no_nan(uncertainty.gaussian_energy_score(mean, cov, z))
    made, since = calibrate([(mean, cov, z)]), torch.zeros(mean.shape[:-1])
    region = made.region(mean, cov, since)
    assert no_nan(made.factor, made.radius2(0.5), made.cov(cov, since), region.shape)


@check(40)
@given(points=tensors(columns=2), truth=tensors(rows=1, columns=2), seed=seeds)
def test_uncertainty_of_weights(points, truth, seed):
    weights = torch.as_tensor(values(seed, (len(points),), 1.0, "normal")).to(points.dtype)
    belief, z = Embedding(points, weights), truth[0].clamp(-1e30, 1e30).to(points.dtype)
    assert no_nan(uncertainty.crps(belief, z), uncertainty.energy_score(belief, z))
    assert no_nan(uncertainty.pit(belief, z))
    grid = torch.linspace(-1, 1, 9, dtype=points.dtype) * points.abs().max().clamp_min(1e-30)
    density = uncertainty.marginal_density(belief, grid, coordinate=0)
    assert no_nan(density, uncertainty.modes(density, grid))


@check(15)
@given(data=pairs(least=9, most=14), share=st.sampled_from([None, 0.5]))
def test_likelihood_free_inference(data, share):
    x, z, query = data
    ratio = None if share is None else np.linspace(share, 1, len(z))
    post = answers(lambda: posterior_from_simulations(z, x, query[0], ratio=ratio))
    if post is None:
        enough = len(z) >= 10 and is_finite(x) and is_finite(z)
        assert not (enough and is_finite(query[0]))
        return
    assert no_nan(post.mean, post.cov, post.interval(0.8), post.sample(3), post.ratio)


@check(6)
@given(draws=tensors(rows=24), kind=st.sampled_from(["same", "constant", "failing"]))
def test_likelihood_free_rounds(draws, kind):
    simulators = {
        "same": lambda z: z,
        "constant": torch.zeros_like,
        "failing": lambda z: torch.where(z > z.median(), torch.nan, z),
    }
    seen = draws.double().sort(0).values[0]
    seen = torch.zeros_like(seen) if kind == "constant" else seen
    post = answers(lambda: posterior_from_simulator(simulators[kind], seen, draws, n=12))
    if post is not None:
        assert no_nan(post.mean, post.cov, post.interval(), post.ratio)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, float("nan")])
def test_levels_outside_are_refused(level):
    with pytest.raises(KbrError, match="level"):
        uncertainty.chi2_quantile(level, 2)
