"""Kernel Bayes' rule in plain loops, written from the paper and independent of kbr.

Slow on purpose: one line of code for each line of mathematics, numpy in and out.
Ref: Xu, Chen, Doucet and Gretton 2022, sections 2 and 3; Kanamori, Suzuki and Sugiyama 2012.
"""

import math

import numpy as np


def gaussian(bandwidth):
    """k(a, b) = exp(-|a - b|^2 / (2 bandwidth^2))."""
    return lambda a, b: math.exp(-sum((a - b) ** 2) / (2 * bandwidth**2))


def laplace(bandwidth):
    """k(a, b) = exp(-|a - b| / bandwidth)."""
    return lambda a, b: math.exp(-math.dist(a, b) / bandwidth)


def matern32(bandwidth):
    """k(a, b) = (1 + t) exp(-t), t = sqrt(3) |a - b| / bandwidth."""

    def kernel(a, b):
        t = math.sqrt(3) * math.dist(a, b) / bandwidth
        return (1 + t) * math.exp(-t)

    return kernel


def matern52(bandwidth):
    """k(a, b) = (1 + t + t^2 / 3) exp(-t), t = sqrt(5) |a - b| / bandwidth."""

    def kernel(a, b):
        t = math.sqrt(5) * math.dist(a, b) / bandwidth
        return (1 + t + t * t / 3) * math.exp(-t)

    return kernel


def linear(bandwidth):
    """k(a, b) = a'b; there is no bandwidth."""
    return lambda a, b: float(sum(a * b))


def gram(kernel, a, b):
    """G_ij = k(a_i, b_j)."""
    return np.array([[kernel(p, q) for q in b] for p in a])


def median_distance(points):
    """The middle one of the n (n - 1) / 2 sorted pairwise distances (the lower of two middles)."""
    n = len(points)
    distances = [math.dist(points[i], points[j]) for i in range(n) for j in range(i)]
    return sorted(distances)[(len(distances) - 1) // 2]


def prior_vector(kernel, z, prior, weights):
    """(g_Pi)_i = <m_Pi, phi(z_i)> = sum_j a_j k(z~_j, z_i)."""
    return np.array([sum(a * kernel(q, p) for a, q in zip(weights, prior, strict=True)) for p in z])


def kulsif(kernel, z, prior, weights, eta):
    """Algorithm 1, step 2, before the maximum: r~ = n (G_Z + n eta I)^-1 g_Pi."""
    n = len(z)
    g_z, g_pi = gram(kernel, z, z), prior_vector(kernel, z, prior, weights)
    return n * np.linalg.inv(g_z + n * eta * np.eye(n)) @ g_pi


def kulsif_at(kernel, z, prior, weights, eta, points):
    """KuLSIF anywhere.

    Kanamori et al. 2012, theorem 1: r~(.) = (1/eta) m_Pi - (1/(n eta)) sum_i r~(z_i) k(z_i, .).
    """
    n, at_train = len(z), kulsif(kernel, z, prior, weights, eta)
    out = prior_vector(kernel, points, prior, weights) / eta
    for i in range(n):
        for j, point in enumerate(points):
            out[j] -= at_train[i] * kernel(z[i], point) / (n * eta)
    return out


def kulsif_leave_one_out(kernel, z, prior, weights, eta):
    """Leave z_l and z~_l out, fit again from scratch, score on both; averaged over l.

    J = mean_l max(0, r_-l(z_l))^2 / 2 - sum_l a_l max(0, r_-l(z~_l)) / sum_l a_l.
    """
    pairs = min(len(z), len(prior))
    squares, gains, shares = [], [], []
    for left_out in range(pairs):
        rest, others = np.delete(z, left_out, 0), np.delete(prior, left_out, 0)
        kept = np.delete(weights, left_out)
        kept = kept / sum(kept)
        both = np.stack([z[left_out], prior[left_out]])
        at_z, at_prior = kulsif_at(kernel, rest, others, kept, eta, both)
        squares.append(max(0.0, at_z) ** 2 / 2)
        gains.append(weights[left_out] * max(0.0, at_prior))
        shares.append(weights[left_out])
    return sum(squares) / pairs - sum(gains) / sum(shares)


def importance_weighted(kernel, x, query, ratio, lam):
    """Algorithm 1, step 3: w = D^.5 (D^.5 G_X D^.5 + n lam I)^-1 D^.5 g_x, D = diag(max(0, r))."""
    n = len(x)
    root = np.diag([math.sqrt(max(0.0, r)) for r in ratio])
    g_x, g_query = gram(kernel, x, x), gram(kernel, x, [query])[:, 0]
    return root @ np.linalg.inv(root @ g_x @ root + n * lam * np.eye(n)) @ root @ g_query


def original(kernel, x, query, ratio, lam):
    """Fukumizu et al. 2013: w = L G_X ((L G_X)^2 + lam I)^-1 L g_x, L = diag(r) / n."""
    n = len(x)
    weight = np.diag(ratio) / n
    g_x, g_query = gram(kernel, x, x), gram(kernel, x, [query])[:, 0]
    product = weight @ g_x
    return product @ np.linalg.inv(product @ product + lam * np.eye(n)) @ weight @ g_query
