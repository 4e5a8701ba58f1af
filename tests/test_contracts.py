"""What every kernel, feature map and rule promises; new ones are found and checked unasked.

A kernel is a subclass of `Kernel`, a rule a subclass of `Rule`, a feature map any class whose `fit`
returns `Features`. Each must be constructible with its defaults (rules: and a ridge).
"""

import importlib
import inspect
import pkgutil

import pytest
import torch

import kbr.core
from kbr import Embedding, KuLSIF
from kbr.core.features import FeatureMap, Features
from kbr.core.kernels import Kernel
from kbr.core.rules import Rule

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(kbr.core.__path__, "kbr.core.")
]


def subclasses(base):
    """Public classes of the package below `base`, at any depth."""
    below = [c for child in base.__subclasses__() for c in (child, *subclasses(child))]
    return sorted({c for c in below if not c.__name__.startswith("_")}, key=lambda c: c.__name__)


def feature_maps():
    """Classes of the package with `fit(points) -> Features`."""
    classes = {c for module in MODULES for _, c in inspect.getmembers(module, inspect.isclass)}
    found = [
        c
        for c in classes
        if c is not FeatureMap
        and callable(getattr(c, "fit", None))
        and inspect.signature(c.fit).return_annotation in (Features, "Features")
    ]
    return sorted(found, key=lambda c: c.__name__)


KERNELS, MAPS, RULES = subclasses(Kernel), feature_maps(), subclasses(Rule)
CONTROL_FLOW = {
    "PivotedCholesky",
    "Mixture",
}  # the number of features depends on values: no meta device


def points(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


ONE, SOME = points(0, 1, 2), points(1, 7, 2)
DEGENERATE = [
    pytest.param(ONE, id="n=1"),
    pytest.param(ONE.expand(6, 2), id="constant"),
    pytest.param(torch.zeros(6, 2, dtype=torch.float64), id="zero"),
    pytest.param(SOME.repeat(3, 1), id="duplicated"),
    pytest.param(torch.cat([ONE.expand(6, 2), SOME[:1]]), id="mostly-constant"),
]


def test_the_known_ones_are_found():
    names = {c.__name__ for c in (*KERNELS, *MAPS, *RULES)}
    assert {"Gaussian", "Laplace", "Matern32", "Matern52", "Linear"} <= names
    assert {"PivotedCholesky", "Nystroem", "RandomFourier", "Identity"} <= names
    assert {"ImportanceWeightedRule", "OriginalRule"} <= names


@pytest.mark.parametrize("cls", KERNELS)
class TestKernel:
    def test_gram_matrices_are_symmetric_and_positive_semi_definite(self, cls):
        a = points(0, 3, 40, 2)
        kernel = cls().fit(a)
        gram = kernel(a, a)
        torch.testing.assert_close(gram, gram.mT)
        assert torch.linalg.eigvalsh(gram).min() > -1e-12 * gram.abs().max() * 40
        torch.testing.assert_close(kernel.diagonal(a), gram.diagonal(dim1=-2, dim2=-1))

    def test_a_batch_is_a_loop(self, cls):
        a, b = points(0, 2, 3, 8, 2), points(1, 2, 3, 5, 2)
        batched = cls().fit(a)(a, b)
        assert batched.shape == (2, 3, 8, 5)
        for i in range(2):
            for j in range(3):
                alone = cls().fit(a[i, j])(a[i, j], b[i, j])
                torch.testing.assert_close(batched[i, j], alone)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_type_and_device_are_those_of_the_input(self, cls, dtype):
        a = points(0, 5, 2, dtype=dtype)
        assert cls().fit(a)(a, a).dtype == cls().fit(a).diagonal(a).dtype == dtype
        ghost = a.to("meta")
        kernel = cls().fit(ghost)
        assert kernel(ghost, ghost).device.type == kernel.diagonal(ghost).device.type == "meta"

    @pytest.mark.parametrize("a", DEGENERATE)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_degenerate_points_give_finite_values(self, cls, a, dtype):
        a = a.to(dtype)
        kernel = cls().fit(a)
        assert kernel(a, a).isfinite().all()
        assert kernel(a + 1e3, a).isfinite().all()

    def test_settings_are_frozen_and_fitting_changes_nothing(self, cls):
        kernel = cls()
        kernel.fit(SOME)
        assert kernel.bandwidth is None
        with pytest.raises(AttributeError):
            kernel.bandwidth = 1.0


@pytest.mark.parametrize("cls", MAPS)
class TestFeatureMap:
    def test_training_features_are_the_function_at_the_training_points(self, cls):
        a, b = points(0, 20, 2), points(1, 6, 2)
        made = cls().fit(a)
        assert made.train.shape[:-1] == (20,)
        assert made(b).shape == (6, made.train.shape[-1])
        torch.testing.assert_close(made(a), made.train, rtol=0, atol=1e-5)

    def test_inner_products_are_near_the_kernel(self, cls):
        a, b = points(0, 20, 2), points(1, 6, 2)
        made = cls().fit(a)
        assert (made.train @ made.train.mT - made.kernel(a, a)).abs().max() < 0.2
        assert (made(b) @ made.train.mT - made.kernel(b, a)).abs().max() < 0.2

    def test_a_batch_is_a_loop(self, cls):
        a, b = points(0, 3, 15, 2), points(1, 3, 4, 2)
        made = cls().fit(a)
        for i in range(3):
            alone = cls().fit(a[i])
            torch.testing.assert_close(
                made(b)[i] @ made.train[i].mT, alone(b[i]) @ alone.train.mT, rtol=0, atol=1e-8
            )

    def test_queries_of_another_precision_are_welcome(self, cls):
        a, b = points(0, 15, 2), points(1, 4, 2)
        made = cls().fit(a)
        assert made(b.float()).dtype == made.train.dtype == torch.float64
        coarse = cls().fit(a.float())
        assert coarse(b).dtype == coarse.train.dtype

    def test_the_device_is_that_of_the_points(self, cls):
        if cls.__name__ in CONTROL_FLOW:
            pytest.skip("the number of features depends on the points' values")
        made = cls().fit(points(0, 9, 2).to("meta"))
        assert made.train.device.type == "meta"
        assert made(points(1, 4, 2).to("meta")).device.type == "meta"

    @pytest.mark.parametrize("a", DEGENERATE)
    def test_degenerate_points_give_finite_features(self, cls, a):
        made = cls().fit(a)
        assert made.train.isfinite().all()
        assert made(a + 1e3).isfinite().all()


@pytest.mark.parametrize("cls", RULES)
class TestRule:
    def test_the_forms_of_the_weights_agree(self, cls):
        """Batched weights, a filter's step and the Gram matrices give the same posterior."""
        psi, query, ratio = points(0, 15, 4), points(1, 3, 4), points(2, 15)
        lam = torch.tensor(0.05, dtype=torch.float64)
        rule = cls(lam=0.05)
        weights = rule.weights(psi, query, ratio)
        assert weights.shape == (15, 3)
        r = rule.effective_ratio(ratio)
        for column, q in zip(weights.mT, query, strict=True):
            s = rule.coefficients(psi.mT @ (r.unsqueeze(-1) * psi), q.unsqueeze(-1), 15, lam)
            step = r * (psi @ s).squeeze(-1)
            gram = rule.gram_weights(psi @ psi.mT, psi @ q.unsqueeze(-1), r, 15, lam).squeeze(-1)
            torch.testing.assert_close(step, gram, rtol=0, atol=1e-8)
            if float(step.sum()) > 0.2 * float(step.abs().sum()):  # rules may scale to sum one
                torch.testing.assert_close(
                    column / column.sum(), step / step.sum(), rtol=0, atol=1e-8
                )

    def test_a_batch_is_a_loop(self, cls):
        x, z, query = points(0, 3, 12, 2), points(1, 3, 12, 1), points(2, 3, 4, 2)
        prior = Embedding.from_samples(points(3, 3, 6, 1))
        rule = cls(lam=0.05, ratio=KuLSIF(eta=0.1))
        batched = rule.fit(x, z).posterior(query, prior)
        for i in range(3):
            alone = rule.fit(x[i], z[i]).posterior(
                query[i], Embedding(prior.points[i], prior.weights[i])
            )
            torch.testing.assert_close(batched.weights[i], alone.weights, rtol=0, atol=1e-8)
            torch.testing.assert_close(batched.mean[i], alone.mean, rtol=0, atol=1e-8)

    @pytest.mark.parametrize("form", ["gram", "feature"])
    def test_solves_are_float64_on_the_device_of_the_input(self, cls, form):
        rule = cls(lam=0.05, form=form)
        psi, query, ratio = points(0, 9, 3).float(), points(1, 2, 3).float(), points(2, 9).float()
        assert rule.weights(psi, query, ratio).dtype == torch.float64
        ghosts = (t.to("meta") for t in (psi, query, ratio))
        assert rule.weights(*ghosts).device.type == "meta"

    @pytest.mark.parametrize("form", ["gram", "feature"])
    @pytest.mark.parametrize("a", DEGENERATE)
    def test_degenerate_pairs_give_finite_posteriors(self, cls, a, form):
        for ratio in (KuLSIF(), KuLSIF(eta=1e-5)):
            made = cls(lam=1e-5, ratio=ratio, form=form).fit(a, a)
            answer = made.posterior(points(3, 4, 2), Embedding.from_samples(SOME))
            assert answer.weights.isfinite().all()
            assert answer.cov.isfinite().all()
