"""The closed-form feature loss against loops, autograd through the dense formula, and chunks."""

import copy

import pytest
import torch
from torch import nn

from kbr.core.errors import KbrError
from kbr.core.objectives import (
    add_up,
    feature_loss,
    feature_sums,
    loss_and_cotangents,
    loss_from_sums,
    share_of_loss,
)

LAM = 1e-2


def points(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def weights(n):
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(9)) * 2


def dense_loss(psi, phi, r, lam):
    """The paper's formula written out: dense matrices, an inverse, a trace."""
    n, d = psi.shape
    diagonal, gram = torch.diag(r), phi @ phi.T
    inverse = torch.linalg.inv(psi.T @ diagonal @ psi + n * lam * torch.eye(d, dtype=psi.dtype))
    inner = diagonal - diagonal @ psi @ inverse @ psi.T @ diagonal
    return torch.trace(gram @ inner) / n


def minimised_loss(psi, phi, r, lam):
    """The definition: the least value over operators E of the weighted squares plus the ridge."""
    n, d = psi.shape
    rows = torch.cat([r.sqrt()[:, None] * psi, (n * lam) ** 0.5 * torch.eye(d, dtype=psi.dtype)])
    right = torch.cat([r.sqrt()[:, None] * phi, torch.zeros(d, phi.shape[1], dtype=psi.dtype)])
    operator = torch.linalg.lstsq(rows, right).solution
    total = 0.0
    for i in range(n):
        total += r[i] * (phi[i] - operator.T @ psi[i]).square().sum() / n
    return total + lam * operator.square().sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_all_forms_are_the_minimum_they_stand_for(weighted):
    psi, phi = points(0, 30, 4), points(1, 30, 7)
    ratio = weights(30) if weighted else None
    r = weights(30) if weighted else torch.ones(30, dtype=torch.float64)
    expected = minimised_loss(psi, phi, r, LAM)
    for loss in (
        feature_loss(psi, phi, ratio, lam=LAM),
        dense_loss(psi, phi, r, LAM),
    ):
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_equals_autograd_through_the_dense_formula(weighted):
    psi, phi = points(0, 30, 4).requires_grad_(), points(1, 30, 7)
    ratio = weights(30) if weighted else None
    r = weights(30) if weighted else torch.ones(30, dtype=torch.float64)
    (expected,) = torch.autograd.grad(dense_loss(psi, phi, r, LAM), psi)
    (fast,) = torch.autograd.grad(feature_loss(psi, phi, ratio, lam=LAM), psi)
    assert relative(fast, expected) < 1e-10


def test_gradient_passes_gradcheck():
    psi, phi = points(0, 6, 3).requires_grad_(), points(1, 6, 4)
    assert torch.autograd.gradcheck(lambda p: feature_loss(p, phi, weights(6), lam=LAM), (psi,))


def test_cotangents_are_the_derivatives_by_the_sums():
    sums = feature_sums(points(0, 20, 3), points(1, 20, 5))
    for tensor in (sums.second, sums.cross, sums.energy):
        tensor.requires_grad_()
    loss = loss_from_sums(sums, lam=LAM)
    second, cross, energy = torch.autograd.grad(loss, (sums.second, sums.cross, sums.energy))
    value, cotangents = loss_and_cotangents(sums.detach(), lam=LAM)
    torch.testing.assert_close(value, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(cotangents.second, (second + second.mT) / 2)
    torch.testing.assert_close(cotangents.cross, cross)
    torch.testing.assert_close(cotangents.energy, energy)


def test_batch_dimensions_are_independent():
    psi, phi, r = points(0, 3, 20, 4), points(1, 3, 20, 5), weights(60).reshape(3, 20)
    batched = feature_loss(psi, phi, r, lam=LAM)
    for k in range(3):
        torch.testing.assert_close(batched[k], feature_loss(psi[k], phi[k], r[k], lam=LAM))


def test_single_precision_features_are_solved_in_double():
    psi, phi = points(0, 50, 4), points(1, 50, 6)
    loss = feature_loss(psi.float(), phi.float(), lam=1e-8)
    assert loss.dtype == torch.float64
    again = feature_loss(psi.float().double(), phi.float().double(), lam=1e-8)
    assert loss == again


def network(dropout=0.0):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4))
    return layers.double()


def split(x, phi, r, size):
    def chunks():
        rows = range(0, len(x), size)
        return (
            (x[i : i + size], phi[i : i + size], None if r is None else r[i : i + size])
            for i in rows
        )

    return chunks


def chunked_feature_loss(encode, chunks, *, lam, seed=0):
    """The loss in two passes: sums without a graph, then each chunk's share of the gradient."""

    def parts():
        for index, (x, phi, ratio) in enumerate(chunks()):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed * 1_000_003 + index)
                psi = encode(x)
            yield feature_sums(psi, phi, ratio)

    with torch.no_grad():
        total = add_up(parts())
    loss, cotangents = loss_and_cotangents(total, lam=lam)
    for part in parts():
        torch.autograd.backward(share_of_loss(part, cotangents))
    return loss


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 7, 40, 100])
def test_two_passes_over_chunks_equal_the_full_batch(size, weighted):
    x, phi = points(0, 40, 5), points(1, 40, 6)
    r = weights(40) if weighted else None
    full = network()
    loss = feature_loss(full(x), phi, r, lam=LAM)
    loss.backward()
    chunked = network()
    value = chunked_feature_loss(chunked, split(x, phi, r, size), lam=LAM)
    assert relative(value, loss.detach()) < 1e-10
    for a, b in zip(chunked.parameters(), full.parameters(), strict=True):
        assert relative(a.grad, b.grad) < 1e-10


def test_chunks_see_the_same_dropout_in_both_passes():
    """Equal to a full-batch step whose rows carry the very masks that the chunks drew."""
    x, phi = points(0, 20, 5), points(1, 20, 6)
    chunked = network(dropout=0.5)
    before = torch.get_rng_state()
    drawn = []

    def encode(part):
        psi = chunked(part)
        drawn.append(psi)
        return psi

    value = chunked_feature_loss(encode, split(x, phi, None, 10), lam=LAM, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    first, second = torch.cat(drawn[:2]), torch.cat(drawn[2:])
    assert torch.equal(first.detach(), second.detach())
    assert not torch.equal(drawn[0], drawn[1])
    full = copy.deepcopy(chunked)
    full.zero_grad()
    parts = []
    for index in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3 * 1_000_003 + index)
            parts.append(full(x[10 * index : 10 * index + 10]))
    loss = feature_loss(torch.cat(parts), phi, lam=LAM)
    loss.backward()
    assert relative(value, loss.detach()) < 1e-10
    for a, b in zip(chunked.parameters(), full.parameters(), strict=True):
        assert relative(a.grad, b.grad) < 1e-10


def test_workers_shares_add_up_to_the_gradient():
    psi, phi = points(0, 30, 4).requires_grad_(), points(1, 30, 6)
    (expected,) = torch.autograd.grad(feature_loss(psi, phi, lam=LAM), psi)
    parts = [feature_sums(psi[k::3], phi[k::3]) for k in range(3)]
    total = parts[0].detach() + parts[1].detach() + parts[2].detach()
    _, cotangents = loss_and_cotangents(total, lam=LAM)
    shares = sum(share_of_loss(part, cotangents) for part in parts)
    (gradient,) = torch.autograd.grad(shares, psi)
    assert relative(gradient, expected) < 1e-10


def test_no_chunks_is_an_error():
    with pytest.raises(KbrError, match="at least one chunk"):
        chunked_feature_loss(network(), list, lam=LAM)


def test_zero_ridge_is_an_error():
    with pytest.raises(KbrError, match="lam"):
        feature_loss(points(0, 5, 2), points(1, 5, 2), lam=0.0)


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp_min(1e-300))
