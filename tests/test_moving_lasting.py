"""Errors of a sensor that last: learned shares, what points remember, and what beliefs hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kbr import KbrError, MovingFilter
from kbr.core.filters.moving.lasting import (
    FAR,
    innovation,
    lasting_of,
    nothing_yet,
    one_row_on,
    places_of,
    remembered,
)

FIXED = {"temper": 1.0, "inflate": 1.0, "outliers": 1e-3, "jitter": 0.0}
RHO = 0.9


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def lasting_errors(n, rho, seed):
    """Of variance one, each the share rho of the one before and something new."""
    new, errors = normal(n, seed=seed), []
    for k in range(n):
        errors.append(new[k] if k == 0 else rho * errors[-1] + (1 - rho**2) ** 0.5 * new[k])
    return torch.stack(errors)


def drift(n, seed):
    """A slow state between -1 and 1, and a sensor whose errors last."""
    z = torch.sin(0.15 * normal(n, seed=seed).cumsum(0)).unsqueeze(-1)
    return z + 0.3 * lasting_errors(n, RHO, seed + 1).unsqueeze(-1), z


class TestShares:
    def test_they_are_found_from_rows_that_are_apart(self):
        every = torch.stack([lasting_errors(4000, rho, 1) for rho in (0.9, 0.5)], -1)
        kept = torch.rand(4000, generator=torch.Generator().manual_seed(3)) < 0.6
        at = torch.arange(4000).double()
        found = lasting_of(7 * every[kept], at[kept])
        assert found.tolist() == pytest.approx([0.9, 0.5])

    def test_new_errors_do_not_last(self):
        for seed in range(5):
            assert not lasting_of(normal(300, 2, seed=seed), torch.arange(300).double()).any()

    def test_rows_of_other_sequences_say_nothing(self):
        errors = normal(100, 1, seed=4).repeat_interleave(2, 0)
        assert lasting_of(errors, torch.arange(200).double()) > 0
        assert not lasting_of(errors[::2], places_of([1] * 100, errors)).any()
        places = places_of([3, 2], errors)
        assert places[:3].tolist() == [0, 1, 2]
        assert places[3] - places[2] > FAR
        assert places[4] - places[3] == 1


def test_new_parts_multiply_to_the_density_of_all_errors():
    """Of a sequence with rows that are absent: a Gaussian with covariance rho^|i - j|."""
    rho, there = 0.8, [True, True, False, False, True, True]
    errors = normal(6, seed=5)
    lasting = torch.tensor([rho], dtype=torch.float64)
    memory = nothing_yet(torch.zeros(1, 1, dtype=torch.float64), lasting)
    total = 0.0
    for k, present in enumerate(there):
        memory = one_row_on(memory, lasting) if k else memory
        if present:
            error = errors[k].reshape(1, 1)
            new, volume = innovation(error, memory, [0])
            total += float(-new.square().sum() / 2 - volume)
            memory = remembered(memory, error, torch.tensor(True), [0])
    rows = np.flatnonzero(there)
    cov = rho ** np.abs(rows[:, None] - rows[None])
    seen = errors.numpy()[rows]
    expected = -(seen @ np.linalg.solve(cov, seen) + np.linalg.slogdet(cov)[1]) / 2
    assert total == pytest.approx(expected)


def test_beliefs_are_as_sure_as_errors_that_last_allow():
    """Taken for new at every row, the same errors make regions that hold far too few."""
    held = {}
    for lasting in (1.0, 0.0):
        filt = MovingFilter(**FIXED, sensing="shows", lasting=lasting, n_particles=300)
        filt.fit(*drift(600, 0))
        x, z = (torch.stack([drift(60, 50 + k)[i] for k in range(20)]) for i in (0, 1))
        out = filt.filter(x)
        size = out.raw_cov[..., 0, 0].sqrt()[:, 20:]
        held[lasting] = float(((out.mean - z).abs()[:, 20:, 0] < 1.645 * size).double().mean())
        expected = RHO if lasting else 0.0
        assert float(filt.model.lasting) == pytest.approx(expected, abs=0.06)
    assert held[1.0] > 0.8
    assert held[0.0] < held[1.0] - 0.1


def test_it_is_chosen_by_held_out_steps():
    settings = {**FIXED, "temper": "auto", "sensing": "shows", "n_particles": 100}
    assert MovingFilter(**settings).fit(*drift(600, 0)).chosen["lasting"] == 1
    _, z = drift(300, 3)
    plain = MovingFilter(**settings).fit(z + 0.3 * normal(300, 1, seed=7), z)
    assert not plain.model.sensing.lasting.any()
    assert plain.chosen["lasting"] == 0


def test_what_tells_has_no_errors_to_remember():
    with pytest.raises(KbrError, match="Set lasting=0, or sensing='shows'"):
        MovingFilter(sensing="tells", lasting=0.5)
    filt = MovingFilter(**FIXED, sensing="tells", n_particles=50).fit(*drift(200, 0))
    assert filt.chosen["lasting"] == 0


def test_what_is_remembered_goes_with_the_belief(tmp_path):
    """Step after step as filter, from a file too; an outlier is forgotten."""
    filt = MovingFilter(**FIXED, sensing="shows", lasting=1.0, n_particles=100)
    filt.fit(*drift(300, 0))
    x, _ = drift(30, 9)
    out, belief = filt.filter(x), filt.init()
    filt.save(tmp_path / "filter.pt")
    again = MovingFilter.load(tmp_path / "filter.pt")
    for k, row in enumerate(x):
        belief = again.step(belief, row)
        torch.testing.assert_close(belief.mean, out.mean[k])
    assert belief.cloud.memory.shape[-1] == 2
    before = belief.cloud.memory
    after = filt.step(belief, torch.tensor([1e3])).cloud
    assert after.memory.abs().max() <= before.abs().max() + 1


def test_a_file_from_before_has_no_memory(tmp_path):
    filt = MovingFilter(**FIXED, sensing="shows", lasting=1.0, n_particles=50)
    filt.fit(*drift(200, 0))
    state = filt.state()
    del state["settings"]["lasting"], state["model"]["tempering"]["lasting"]
    for one in state["model"]["sensing"]["maps"]:
        del one["lasting"]
    del state["model"]["dynamics"]["lasting"]
    old = MovingFilter.from_state(state)
    assert not old.model.lasting.any()
    x, _ = drift(20, 9)
    model = replace(filt.model, tempering=replace(filt.model.tempering, lasting=0.0))
    torch.testing.assert_close(old.model.filtered(x).mean, model.filtered(x).mean)
