"""Posteriors of simulators against exact ones, and what the inference does with odd input."""

import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kbr import Embedding, KbrError, posterior_from_simulations, posterior_from_simulator
from kbr.core.kernels import Gaussian
from kbr.core.proposals import propose, systematic_sample
from kbr.core.regression import kernel_regression

NOISE = 0.5
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "likelihood_free.py"


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def prior(n, generator):
    return torch.randn(n, 2, dtype=torch.float64, generator=generator)


def simulator(seed=99):
    generator = torch.Generator().manual_seed(seed)

    def simulate(z):
        return z + NOISE * torch.randn(z.shape, dtype=z.dtype, generator=generator)

    return simulate


def exact(x, variance=1.0):
    """Mean and variance under independent N(0, variance) priors."""
    gain = variance / (variance + NOISE**2)
    return gain * x, gain * NOISE**2


SEEN = torch.tensor([0.8, -0.4], dtype=torch.float64)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_posterior_of_a_gaussian_simulator_is_found(rounds):
    post = posterior_from_simulator(simulator(), SEEN, prior, n=500, rounds=rounds)
    mean, variance = exact(SEEN)
    assert len(post.z) == len(post.x) == 500
    assert (post.mean - mean).abs().max() < 0.3 * variance**0.5
    assert ((post.cov.diagonal() / variance).log().abs() < 0.35).all()
    torch.testing.assert_close(post.embedding.weights.sum().item(), 1.0)
    assert (post.embedding.weights >= 0).all()


def test_further_rounds_simulate_where_the_posterior_is():
    narrow = torch.tensor([2.0, 2.0], dtype=torch.float64)
    post = posterior_from_simulator(simulator(), narrow, prior, n=300, rounds=2)
    early, late = post.z[:90], post.z[90:]
    mean, _ = exact(narrow)
    assert (late - mean).square().mean() < 0.5 * (early - mean).square().mean()
    assert (post.ratio[90:].mean() < post.ratio[:90].mean()).item()


@pytest.mark.parametrize("given", ["ratio", "prior"])
def test_another_prior_than_that_of_the_simulations(given):
    """Simulated from N(0, 2), wanted under N(0, 1/4): by the known ratio, and by KuLSIF's."""
    z = 2**0.5 * normal(0, 600, 2)
    x = simulator()(z)
    ratio = torch.exp(-1.75 * z.square().sum(-1))
    known = {"ratio": ratio, "prior": Embedding.from_samples(0.5 * normal(2, 400, 2))}
    far = torch.tensor([1.5, 0.0], dtype=torch.float64)
    post = posterior_from_simulations(z, x, far, **{given: known[given]})
    wanted, other = exact(far, 0.25)[0], exact(far, 2.0)[0]
    assert (post.mean - wanted).norm() < 0.67 * (other - wanted).norm()


def test_the_spread_follows_the_observation():
    """The law of z given x may be any: here its spread grows with x."""
    x = normal(0, 600, 1)
    z = x + 0.3 * torch.exp(0.5 * x) * normal(1, 600, 1)
    for at in (-1.0, 1.0):
        post = posterior_from_simulations(z, x, torch.tensor([at]))
        assert abs(post.mean.item() - at) < 0.2
        assert abs(post.cov.log().item() - math.log(0.09) - at) < 0.5


def test_intervals_and_samples_are_those_of_the_weighted_points():
    post = posterior_from_simulator(simulator(), SEEN, prior, n=200, rounds=1)
    for level in (0.5, 0.9):
        low, high = post.interval(level).mT
        inside = (post.embedding.points >= low) & (post.embedding.points <= high)
        share = (post.embedding.weights.unsqueeze(-1) * inside).sum(0)
        assert ((share - level).abs() < 0.05).all()
    draws = post.sample(4000)
    assert (draws.mean(0) - post.mean).abs().max() < 0.05
    torch.testing.assert_close(draws, post.sample(4000))
    assert not torch.equal(draws, post.sample(4000, seed=1))


def test_summaries_units_and_types_change_nothing():
    z, noise = normal(0, 200, 2), normal(1, 200, 30, 2)
    x = z.unsqueeze(1) + noise
    seen = x[0]
    plain = posterior_from_simulations(z, x.mean(1), seen.mean(0))
    asked = posterior_from_simulations(z, x, seen, summary=lambda rows: rows.mean(-2))
    torch.testing.assert_close(plain.mean, asked.mean)
    scaled = posterior_from_simulations(
        (1e6 * z + 3).numpy(), 1e-9 * x.mean(1).numpy(), 1e-9 * seen.mean(0).numpy()
    )
    torch.testing.assert_close(scaled.mean, 1e6 * plain.mean + 3, rtol=1e-4, atol=0)
    torch.testing.assert_close(scaled.cov, 1e12 * plain.cov, rtol=1e-3, atol=0)


def test_simulations_that_failed_are_left_out():
    z = normal(0, 200, 1)
    x = z + 0.3 * normal(1, 200, 1)
    broken = torch.where(z > 1.5, torch.nan, x)
    keep = (z <= 1.5).squeeze(-1)
    whole = posterior_from_simulations(z, broken, torch.tensor([0.0]))
    part = posterior_from_simulations(z[keep], x[keep], torch.tensor([0.0]))
    torch.testing.assert_close(whole.mean, part.mean)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_tensor_of_prior_draws_will_do_and_runs_repeat(rounds):
    """No draw is simulated twice, in one round or in two."""
    pool = normal(4, 760, 2)
    first, again = (
        posterior_from_simulator(simulator(), SEEN, pool, n=200, rounds=rounds, seed=3)
        for _ in range(2)
    )
    torch.testing.assert_close(first.mean, again.mean)
    assert all(bool((row == pool).all(-1).any()) for row in first.z)
    assert len(first.z.unique(dim=0)) == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observed": torch.zeros(3)}, "shape of one simulation"),
        ({"observed": torch.full((2,), torch.nan)}, "observed must be finite"),
        ({"z": normal(0, 5, 2), "x": normal(0, 5, 2)}, "at least 10 finite"),
        ({"z": normal(0, 20, 2)}, "one simulation for each"),
        ({"ratio": torch.ones(4)}, "one value for each"),
        ({"ratio": torch.ones(30), "prior": Embedding.from_samples(normal(0, 5, 2))}, "not both"),
        ({"prior": Embedding.from_samples(normal(0, 5, 3))}, "like z"),
        ({"summary": lambda x: x.sum()}, "one row of statistics"),
        ({"x": np.array(["a"] * 30)}, "numeric"),
    ],
)
def test_errors_say_what_to_change(change, words):
    given = {"z": normal(0, 30, 2), "x": normal(1, 30, 2), "observed": SEEN, **change}
    with pytest.raises(KbrError, match=words):
        posterior_from_simulations(**given)


def test_errors_of_the_simulator_and_the_budget():
    with pytest.raises(KbrError, match="n must be at least"):
        posterior_from_simulator(simulator(), SEEN, prior, n=3)
    with pytest.raises(KbrError, match="one x for each"):
        posterior_from_simulator(lambda z: z[:1], SEEN, prior, n=20)
    with pytest.raises(KbrError, match=r"at least 190 draws for n = 50 .* 2 round.*; got 189"):
        posterior_from_simulator(simulator(), SEEN, normal(0, 189, 2), n=50)
    with pytest.raises(KbrError, match=r"at least 50 draws for n = 50 .* 1 round.*; got 49"):
        posterior_from_simulator(simulator(), SEEN, normal(0, 49, 2), n=50, rounds=1)
    with pytest.raises(KbrError, match="asked for 15 draws; got 2"):
        posterior_from_simulator(simulator(), SEEN, lambda n, g: normal(0, 2, 2), n=50)
    with pytest.raises(KbrError, match="level"):
        posterior_from_simulator(simulator(), SEEN, prior, n=20).interval(1.5)


@pytest.mark.parametrize("pool_size", [500, 4000])
def test_a_proposal_is_weighted_back_to_the_prior(pool_size):
    """Under the proposal E[f / ratio] is the prior's E f: f = 1 and z where 0 < z < 2, z normal."""
    near = Embedding.from_samples(1 + 0.3 * normal(1, 500, 1))
    found = []
    for seed in range(1000, 1100):
        generator = torch.Generator().manual_seed(seed)
        pool = torch.randn(pool_size, 1, dtype=torch.float64, generator=generator)
        chosen, tilt = propose(near, pool, 100, generator)
        assert len(chosen.unique()) == 100
        inside = ((chosen > 0) & (chosen < 2)) / tilt(chosen).unsqueeze(-1)
        found.append(torch.cat([inside, chosen * inside], 1).mean(0))
    answers = torch.stack(found)
    truth = torch.tensor([0.47725, 0.34495], dtype=torch.float64)
    standard_error = answers.std(0) / len(answers) ** 0.5
    assert (standard_error < 0.01).all()
    assert ((answers.mean(0) - truth).abs() < 3 * standard_error).all()


def test_draws_are_kept_as_often_as_their_shares_say():
    """Inclusion without replacement, exactly: also for shares near one."""
    shares = torch.tensor([0.95, 0.5, 0.3, 0.2, 0.05], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1000)
    counts = torch.zeros(5, dtype=torch.float64)
    for _ in range(3000):
        rows = systematic_sample(3 * shares, 2, generator)
        assert len(set(rows.tolist())) == 2
        counts[rows] += 1
    error = (shares * (1 - shares) / 3000).sqrt()
    assert ((counts / 3000 - shares).abs() < 4 * error).all()


def test_leave_one_out_residuals_are_those_of_refitting():
    x, t = normal(0, 15, 2), normal(1, 15, 1)
    r = torch.rand(15, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.5
    r = r / r.mean()
    whole = kernel_regression(Gaussian(), x, t, r, scales=[2.0], lams=[0.1])
    psi = whole.features.train
    for i in range(15):
        keep = torch.arange(15) != i
        p, y, d = psi[keep], t[keep], r[keep].unsqueeze(-1)
        design = torch.cat([torch.ones(14, 1, dtype=p.dtype), p], 1)
        ridge = 15 * 0.1 * torch.eye(design.shape[1], dtype=p.dtype)
        ridge[0, 0] = 0  # the intercept is free
        beta = torch.linalg.solve(design.mT @ (d * design) + ridge, design.mT @ (d * y))
        alone = t[i] - beta[0] - psi[i] @ beta[1:]
        torch.testing.assert_close(whole.residuals(power=1.0)[i], alone)
    w = whole.weights(x[3])
    torch.testing.assert_close(w @ t, whole.predict(x[3]))
    torch.testing.assert_close(w.sum().item(), 1.0)


def test_the_example_beats_rejection_and_draws(tmp_path, monkeypatch, capsys):
    """A small run of it: errors well below those of the best rejection, and a picture."""
    arguments = ["--problem", "linear", "--simulations", "300", "--observations", "3"]
    path = tmp_path / "posterior.png"
    monkeypatch.setattr(sys, "argv", ["likelihood_free.py", *arguments, "--picture", str(path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["linear", "mean"], ["linear", "variance"]]
    assert all(float(row[-1]) < 0.5 for row in rows)
    assert path.stat().st_size > 1000
