"""All recurrent models in a small size, as filters and as modules."""

from functools import partial

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
from kbr.training import (
    MLP,
    GRUFilter,
    KalmanNNFilter,
    LRUFilter,
    LSTMFilter,
    RKNFilter,
    TransformerFilter,
)

ENCODER = partial(MLP, hidden=(8,), n_features=4)
FILTERS = {
    "lstm": partial(LSTMFilter, hidden=7, window=4),
    "gru": partial(GRUFilter, hidden=7, chunk=20),
    "lru": partial(LRUFilter, hidden=7, chunk=20),
    "rkn": partial(RKNFilter, hidden=8, basis=3, band=1, chunk=20),
    "transformer": partial(TransformerFilter, hidden=8, heads=2, window=4),
    "kalman_nn": partial(KalmanNNFilter, hidden=3, chunk=20),
}
MODULES = {name: partial(made.func.network, **made.keywords) for name, made in FILTERS.items()}
