"""Algorithm 2 of Xu et al. 2022 in dense numpy, line by line, independent of `kbr`.

Symbols are the paper's: G Gram matrices; eta, lam, lam' ridges; w weights on training points.
"""

import numpy as np


def gram(a, b, bandwidth):
    """k(a, b) = exp(-|a - b|^2 / (2 bandwidth^2)) for rows of a and b."""
    return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / bandwidth**2)


def median_bandwidth(points, scale=1.0):
    """scale times the (lower) median of the pairwise distances."""
    i, j = np.triu_indices(len(points), 1)
    distances = np.sort(np.linalg.norm(points[i] - points[j], axis=-1))
    return scale * distances[(len(distances) - 1) // 2]


def kulsif(g_z, w, eta):
    """n (G_Z + n eta I)^-1 g_Pi with g_Pi = G_Z w, before the positive part."""
    n = len(g_z)
    return n * np.linalg.solve(g_z + n * eta * np.eye(n), g_z @ w)


def importance_weighted(g_x, g_query, ratio, lam):
    """sqrt(D) (sqrt(D) G_X sqrt(D) + n lam I)^-1 sqrt(D) g_x,  D = diag(max(0, r))."""
    n = len(g_x)
    root = np.sqrt(np.maximum(0, ratio))
    return root * np.linalg.solve(
        root[:, None] * g_x * root[None] + n * lam * np.eye(n), root * g_query
    )


def original(g_x, g_query, ratio, lam):
    """L G_X ((L G_X)^2 + lam I)^-1 L g_x,  L = diag(r) / n."""
    n = len(g_x)
    product = ratio[:, None] / n * g_x
    return product @ np.linalg.solve(product @ product + lam * np.eye(n), ratio / n * g_query)


def transition(g_z, w, lam, lengths=None):
    """Weights one step ahead: w_2:T = (G_Z- + (T-1) lam' I)^-1 G~_Z- w and w_1 = 0.

    With several sequences laid end to end, their first points get no weight and the pairs across a
    border are left out.
    """
    starts = np.cumsum([0, *(lengths or [len(g_z)])])
    after = np.setdiff1d(np.arange(len(g_z)), starts)
    before = after - 1
    k = len(before)
    ahead = np.zeros(len(g_z))
    ahead[after] = np.linalg.solve(
        g_z[np.ix_(before, before)] + k * lam * np.eye(k), g_z[before] @ w
    )
    return ahead


def dense_filter(
    x, z, x_test, *, width_x, width_z, eta, lam, lam_transition=None, rule=None, lengths=None
):
    """Posterior means [T, dz] and weights [T, n]; a row of x_test with NaN is a prediction only."""
    rule = importance_weighted if rule is None else rule
    lam_transition = eta if lam_transition is None else lam_transition
    g_x, g_z = gram(x, x, width_x), gram(z, z, width_z)
    w, history = np.full(len(z), 1 / len(z)), []
    for t, x_t in enumerate(x_test):
        if t > 0:
            w = transition(g_z, w, lam_transition, lengths)
        if not np.isnan(x_t).any():
            g_query = gram(x, x_t[None], width_x)[:, 0]
            w = rule(g_x, g_query, kulsif(g_z, w, eta), lam)
        history.append(w)
    return np.stack(history) @ z, np.stack(history)
