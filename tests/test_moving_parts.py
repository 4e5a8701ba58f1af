"""What the moving filter is made of: regressions, densities and clouds, against plain numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kbr import KbrError
from kbr.core.filters.moving.cloud import Cloud, Draws
from kbr.core.filters.moving.doubt import FEW, Doubt
from kbr.core.filters.moving.sensing import Shows, Tells, log_density
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap, _Ridge
from kbr.core.kernel_ridge import block_of

NAN = torch.nan


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(found, expected, atol=1e-6):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def sure(made):
    """The map without doubts of its function: errors alone."""
    known = {name: torch.zeros_like(part) for name, part in vars(made.doubt).items()}
    return replace(made, doubt=Doubt(**known))


class TestSmoothMap:
    """Against ridge regression with the kernel 1 + a'b + exp(-|a - b|^2 / 2h^2), in numpy."""

    RIDGES = (1e-3, 1e-1)
    SCALE = 0.4

    def problem(self, n=40):
        a = normal(n, 2, seed=1)
        t = torch.stack([(2 * a[:, 0]).sin(), 5 + 3 * a.prod(-1)], -1) + 0.1 * normal(n, 2, seed=2)
        return a, t

    def choice(self, spreads=torch.inf):
        ridges = torch.tensor(self.RIDGES, dtype=torch.float64)
        return MapChoice(self.SCALE, ridges, torch.full_like(ridges, spreads))

    def gram(self, a, b, train):
        middle, spread = train.mean(0), train.std(0)
        a, b, rows = ((part - middle) / spread for part in (a, b, train))
        i, j = np.triu_indices(len(rows), 1)
        pairs = np.sort(np.linalg.norm(rows[i] - rows[j], axis=-1))
        h = self.SCALE * pairs[(len(pairs) - 1) // 2]
        return 1 + a @ b.T + np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * h * h))

    def test_the_mean_is_dense_kernel_ridge_regression(self):
        a, t = self.problem()
        made, query = SmoothMap.fit(a, t, self.choice()), 2 * normal(15, 2, seed=3)
        assert made.rank == len(a)  # every point is a landmark
        rows, targets, n = a.numpy(), t.numpy(), len(a)
        inside, across = self.gram(rows, rows, rows), self.gram(query.numpy(), rows, rows)
        for k, ridge in enumerate(self.RIDGES):
            middle = targets[:, k].mean()
            weights = np.linalg.solve(inside + n * ridge * np.eye(n), targets[:, k] - middle)
            np.testing.assert_allclose(
                made(query)[0][:, k].numpy(), middle + across @ weights, atol=1e-7
            )

    @pytest.mark.parametrize(("n", "size"), [(9, 1), (40, 4), (43, 4)])
    def test_left_out_errors_are_those_of_refits_without_the_block(self, n, size):
        a, t = self.problem(n)
        rows = a.numpy()
        assert block_of(n) == size
        inner = (a - a.mean(0)) / a.std(0, correction=0)
        found = _Ridge.of(inner, t, self.SCALE).errors(self.RIDGES).numpy()
        targets = ((t - t.mean(0)) / t.std(0, correction=0)).numpy()
        gram = self.gram(rows, rows, rows)
        for k, ridge in enumerate(self.RIDGES):
            for block in np.split(np.arange(n), np.arange(size, n, size)):
                rest = np.delete(np.arange(n), block)
                left = gram[np.ix_(rest, rest)] + n * ridge * np.eye(len(rest))
                told = gram[np.ix_(block, rest)] @ np.linalg.solve(left, targets[rest, k])
                np.testing.assert_allclose(found[block, k], targets[block, k] - told, atol=1e-7)

    def test_even_errors_have_the_size_and_the_covariance_of_left_out_ones(self):
        a, t = self.problem()
        made, inner = SmoothMap.fit(a, t, self.choice()), (a - a.mean(0)) / a.std(0, correction=0)
        missed = _Ridge.of(inner, t, self.SCALE).errors(self.RIDGES) * t.std(0, correction=0)
        sd = sure(made)(a)[1]
        close(sd, missed.square().mean(0).sqrt().expand_as(sd))
        white = missed / sd
        close(made.root @ made.root.mT, white.mT @ white / len(a), 1e-5)

    def test_the_size_of_uneven_errors_is_learned_and_kept_within_what_was_seen(self):
        a = torch.linspace(-2, 2, 1200, dtype=torch.float64).unsqueeze(-1)
        size = 0.2 * (0.6 * a).exp()
        made = SmoothMap.fit(a, a.sin() + size * normal(1200, 1, seed=4))
        assert made.choice.spreads.isfinite().all()
        at = torch.tensor([[-1.5], [-0.1], [1.0], [1.9]], dtype=torch.float64)
        mean, sd = made(at)
        assert ((sd / (0.2 * (0.6 * at).exp())).log().abs() < math.log(1.25)).all()
        assert (mean - at.sin()).abs().max() < 0.15
        certain, away = sure(made), torch.tensor([[1e3]], dtype=torch.float64)
        assert 0 < certain(away)[1] <= certain(a)[1].max() * (1 + 1e-9)

    def test_doubt_is_the_variance_of_a_gaussian_process(self):
        a, t = self.problem()
        made, query = SmoothMap.fit(a, t, self.choice()), 2 * normal(15, 2, seed=3)
        rows, n, at = a.numpy(), len(a), query.numpy()
        inside, across = self.gram(rows, rows, rows), self.gram(at, rows, rows)
        own, scale = np.diag(self.gram(at, at, rows)), t.std(0, correction=0).numpy()
        found = made(query)[1].square() - sure(made)(query)[1].square()
        for k, ridge in enumerate(self.RIDGES):
            target = (t[:, k] - t[:, k].mean()).numpy() / scale[k]
            noisy = inside + n * ridge * np.eye(n)
            tau2 = target @ np.linalg.solve(noisy, target) / n
            left = own - (across * np.linalg.solve(noisy, across.T).T).sum(-1)
            np.testing.assert_allclose(found[:, k].numpy(), scale[k] ** 2 * tau2 * left, rtol=1e-5)

    def test_it_is_wider_where_nothing_was_learned_and_holds_the_truth_there(self):
        rows = 4 * torch.rand(600, 2, generator=torch.Generator().manual_seed(8)).double() - 2
        inside = rows[rows.norm(dim=-1) > 1.2]  # but for a hole

        def wave(at):
            return (4 * at[:, :1]).sin() * (3 * at[:, 1:]).cos()

        made = SmoothMap.fit(inside, wave(inside) + 0.05 * normal(len(inside), 1, seed=9))
        hole = 0.4 * normal(200, 2, seed=10)
        mean, sd = made(hole)
        assert sd.median() > 1.5 * made(inside)[1].median()
        assert float(((mean - wave(hole)).abs() < 2 * sd).double().mean()) > 0.9
        narrow = sure(made)(hole)[1]
        assert float(((mean - wave(hole)).abs() < 2 * narrow).double().mean()) < 0.8

    def test_points_of_a_cloud_doubt_as_the_nearest_that_is_asked(self):
        a, t = self.problem(100)
        made = SmoothMap.fit(a, t)
        few = 3 * normal(4, FEW, 2, seed=9)
        close(made(few, cloud=True)[1], made(few)[1], 1e-12)
        centre = 3 * normal(4, 1, 2, seed=10)
        many = centre + 0.02 * normal(4, 500, 2, seed=11)
        ratio = made(many, cloud=True)[1] / made(many)[1]
        assert ratio.log().abs().max() < 0.1
        close(made(many, cloud=True)[0], made(many)[0], 1e-12)

    def test_even_errors_stay_even(self):
        a = 2 * normal(600, 1, seed=5)
        made = SmoothMap.fit(a, a.sin() + 0.2 * normal(600, 1, seed=6))
        assert not made.choice.spreads.isfinite().any()
        assert float(made(a)[1].mean()) == pytest.approx(0.2, rel=0.15)

    @pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
    def test_offsets_and_units_change_nothing(self, unit):
        a, t = self.problem(200)
        units = torch.tensor([1.0, unit], dtype=torch.float64)
        query = normal(30, 2, seed=7)
        mean, sd = SmoothMap.fit(a, t)(query)
        other = SmoothMap.fit(units * a + 1e6 * units, units * t - 1e6 * units)
        found = other(units * query + 1e6 * units)
        close(found[0] / units + 1e6, mean, 1e-5)
        close(found[1] / units, sd, 1e-5)

    def test_a_known_choice_is_not_searched_again(self):
        a, t = self.problem(100)
        made = SmoothMap.fit(a, t)
        again = SmoothMap.fit(a, t, made.choice)
        close(again(a)[0], made(a)[0])
        close(again(a)[1], made(a)[1])
        part = SmoothMap.fit(a[:80], t[:80], made.choice)
        assert part.choice is made.choice

    @pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3])
    def test_a_constant_column_is_told_to_be_so(self, value):
        a, t = self.problem(60)
        t[:, 1] = value
        mean, sd = SmoothMap.fit(a, t)(a)
        close(mean[:, 1], t[:, 1], 1e-6 * max(value, 1))
        assert sd.isfinite().all()
        wide = torch.cat([a, torch.full_like(a[:, :1], value)], -1)
        close(SmoothMap.fit(wide, t)(wide)[0][:, 0], mean[:, 0], 1e-6)
        assert SmoothMap.fit(wide[:, 2:], t)(wide[:, 2:])[0].isfinite().all()

    def test_a_record_gives_the_same_map(self):
        made = SmoothMap.fit(*self.problem())
        again, query = SmoothMap.from_record(made.record()), normal(5, 2, seed=8)
        close(again(query)[0], made(query)[0])
        with pytest.raises(KbrError, match="at least 2 rows"):
            SmoothMap.fit(torch.zeros(1, 2), torch.zeros(1, 1))


class TestDensities:
    def root(self, k):
        some = normal(k, k, seed=9)
        return torch.linalg.cholesky(some @ some.mT + torch.eye(k, dtype=torch.float64))

    def gaussian(self, at, mean, sd, root):
        """log N up to the constant that no point changes."""
        factor = sd.unsqueeze(-1) * root
        full = torch.distributions.MultivariateNormal(mean, scale_tril=factor).log_prob(at)
        return full + len(root) / 2 * math.log(2 * math.pi) + root.diagonal().log().sum()

    def test_of_errors(self):
        root, error, sd = self.root(3), normal(4, 20, 3, seed=10), normal(4, 20, 3, seed=11).exp()
        expected = self.gaussian(error * sd, torch.zeros(3, dtype=torch.float64), sd, root)
        close(log_density(error, sd, root), expected, 1e-9)

    def test_what_the_latent_shows_and_which_sensors_count(self):
        z = normal(80, 2, seed=12)
        x = torch.cat([z, z.sum(-1, keepdim=True)], -1) + 0.3 * normal(80, 3, seed=13)
        sensing = Shows.fit(x, z, [(0, 2), (1,)])
        points, row = normal(2, 9, 2, seed=14), normal(2, 3, seed=15)
        row[1, 2] = NAN  # of the second belief, the first sensor is absent
        there = torch.tensor([[True, True], [False, True]])
        found = sensing.log_density(row, sensing.at(points, there), there)
        parts = []
        for group, one in zip(sensing.columns, sensing.maps, strict=True):
            mean, sd = one(points)
            seen = row[:, list(group)].nan_to_num(7.0).unsqueeze(-2)
            parts.append(self.gaussian(seen, mean, sd, one.root))
        close(found[0], parts[0][0] + parts[1][0], 1e-9)
        close(found[1], parts[1][1], 1e-9)
        none = torch.zeros(2, 2, dtype=torch.bool)
        assert not sensing.log_density(row, sensing.at(points), none).any()

    def test_what_the_observation_tells(self):
        z = normal(80, 3, seed=16)
        x = torch.cat([z, z], -1) + 0.3 * normal(80, 6, seed=17)
        sensing = Tells.fit(x, z, 2)  # the third is a rate, of which x says nothing
        points, there = normal(9, 3, seed=18), torch.ones(1, dtype=torch.bool)
        mean, sd = sensing.map(x[0])
        expected = self.gaussian(points[:, :2], mean, sd.expand(9, 2), sensing.map.root)
        close(sensing.log_density(x[0], sensing.at(points), there), expected, 1e-9)
        assert not sensing.log_density(x[0], sensing.at(points), ~there).any()


class TestCloud:
    def test_moments_are_those_of_weighted_points(self):
        points, weights = normal(3, 50, 2, seed=19), normal(3, 50, seed=20).softmax(-1)
        mean, cov = Cloud.weighted(points, weights.log()).moments()
        for k in range(3):
            expected = np.cov(points[k].numpy().T, aweights=weights[k].numpy(), ddof=0)
            np.testing.assert_allclose(cov[k].numpy(), expected, atol=1e-12)
            np.testing.assert_allclose(mean[k].numpy(), weights[k].numpy() @ points[k].numpy())

    def test_points_are_drawn_in_proportion_to_their_weights(self):
        points = torch.arange(4, dtype=torch.float64).unsqueeze(-1)
        weights = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
        cloud = Cloud.weighted(points, weights.log())
        drawn = cloud.drawn(1000, torch.tensor(0.3).double()).points
        counts = torch.bincount(drawn.flatten().long(), minlength=4)
        assert ((counts - 1000 * weights).abs() <= 1).all()
        even = Cloud.even(points)
        assert even.effective_sample_size == pytest.approx(4)
        close(even.drawn(4, torch.tensor(0.7).double()).points, points)

    def test_draws_are_those_of_their_seed_and_step(self):
        like = torch.zeros(1, dtype=torch.float64)
        first, again = (Draws.of(3, 5, (40, 2), like) for _ in range(2))
        assert torch.equal(first.normal, again.normal)
        others = [Draws.of(3, 6, (40, 2), like), Draws.of(4, 5, (40, 2), like)]
        assert not any(torch.equal(first.normal, other.normal) for other in others)
