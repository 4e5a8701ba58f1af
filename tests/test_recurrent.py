"""Recurrent baselines: a state carried on, covariances of each step, controls, missing frames."""

import math
from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import numpy as np
import pytest
import torch
from networks import ENCODER, FILTERS
from torch import nn

from kbr import KbrError, load_filter, loading
from kbr.training import GRUFilter, LearnedFilter
from kbr.training.filters import recurrent
from kbr.training.gaps import hold, random_gaps
from kbr.training.modules.gru import GRUModule
from kbr.training.precision import PrecisionLayer, covariance

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
)
ROOT = Path(__file__).resolve().parent.parent
OLD = ROOT / "tests" / "data" / "lstm_constant_covariance"
QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "logger": False}
SMALL = {"encoder": ENCODER, "val_every": 5}


@pytest.fixture(params=FILTERS)
def made(request):
    return FILTERS[request.param]


def test_all_are_known_where_filters_are_loaded_and_configured():
    assert tuple(FILTERS) == loading.RECURRENT
    assert {made.func.kind for made in FILTERS.values()} < set(loading.TRAINED)
    for group in ("model", "hparams_search"):
        assert all((ROOT / "configs" / group / f"{name}.yaml").is_file() for name in FILTERS)


def pushed(n, seed):
    """A point that u turns along a ring, seen with noise; columns of units far apart."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1.5, 1.5, (n, 1))
    angle = np.cumsum(0.4 + u[:, 0] + 0.1 * rng.normal(size=n))
    z = np.stack([np.cos(angle) * 1e-3, np.sin(angle) + 1e6], 1)
    x = np.stack([np.cos(angle), 1e5 * np.sin(angle)], 1)
    return x + rng.normal(size=x.shape) * [0.3, 3e4], z, u


def gappy(x):
    x = x.copy()
    x[:3], x[9, 0], x[15:22] = np.nan, np.nan, np.nan
    return x


@pytest.mark.parametrize(("gaps", "driven"), [(0.0, False), (0.2, True)])
def test_streaming_equals_filtering(made, gaps, driven, monkeypatch):
    """With gaps, at the start too, and whatever block of steps is filtered together."""
    x, z, u = pushed(90, 0)
    moves = {"u": u} if driven else {}
    filt = made(**SMALL, gaps=gaps, epochs=10).fit(x, z, **moves, trainer=QUIET)
    new, _, push = pushed(40, 1)
    new = gappy(new)
    whole = filt.filter(new, **({"u": push} if driven else {}))
    monkeypatch.setattr(recurrent, "BLOCK", 7)
    belief, beliefs = filt.init(), []
    for row, move in zip(new, push, strict=True):
        belief = filt.step(belief, row, **({"u": move} if driven else {}))
        beliefs.append(belief)
    for name in ("mean", "cov", "raw_cov", "evidence"):
        found = torch.stack([getattr(one, name) for one in beliefs])
        torch.testing.assert_close(found, getattr(whole, name), rtol=1e-9, atol=1e-12)
    by_blocks = filt.filter(new, **({"u": push} if driven else {}))
    torch.testing.assert_close(by_blocks.raw_cov, whole.raw_cov, rtol=1e-9, atol=1e-12)
    several = filt.filter(np.stack([new, new]), **({"u": np.stack([push, push])} if driven else {}))
    torch.testing.assert_close(several.mean[1], whole.mean)
    ahead = filt.forecast(beliefs[14], 7, **({"u": push[15:22]} if driven else {}))
    torch.testing.assert_close(ahead.mean, whole.mean[21], rtol=1e-9, atol=1e-12)


def test_files_keep_controls_and_covariances(made, tmp_path):
    x, z, u = pushed(90, 0)
    filt = made(**SMALL, gaps=0.1, epochs=10).fit(x, z, u=u, trainer=QUIET)
    filt.save(tmp_path / "filter.ckpt")
    again = load_filter(tmp_path / "filter.ckpt")
    assert type(again) is type(filt)
    whole = filt.filter(gappy(x), u=u)
    for name in ("mean", "cov", "raw_cov"):
        torch.testing.assert_close(getattr(again.filter(gappy(x), u=u), name), getattr(whole, name))
    with pytest.raises(KbrError, match="fitted with control inputs"):
        again.filter(x)
    other = u.copy()
    other[10] += 1.0
    change = (filt.filter(x, u=other).mean - filt.filter(x, u=u).mean).abs().sum(-1)
    assert (change[:10] == 0).all()
    assert change[10] > 0


def test_models_without_controls_refuse_them():
    x, z, u = pushed(30, 0)
    with pytest.raises(KbrError, match="LearnedFilter takes no control inputs"):
        LearnedFilter(encoder=SMALL["encoder"]).fit(x, z, u=u)


def test_a_gru_remembers_more_than_a_piece_of_training():
    x, z, _ = pushed(90, 0)
    filt = GRUFilter(**SMALL, chunk=5, epochs=5).fit(x, z, trainer=QUIET)
    other = x.copy()
    other[3] += 1.0
    change = (filt.filter(other).mean - filt.filter(x).mean).abs()[:, 1]
    assert (change[:3] == 0).all()
    assert (change[3:12] > 0).all()


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_loss_of_precisions_is_the_likelihood_of_the_gaussian():
    layer, outputs, error = PrecisionLayer(5, 2).double(), normal(9, 5), normal(9, 2, seed=1)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(2))
    whitening = layer(outputs)
    exact = torch.distributions.MultivariateNormal(
        torch.zeros(2).double(), precision_matrix=whitening.mT @ whitening
    )
    expected = -exact.log_prob(error).mean() - math.log(2 * math.pi)
    torch.testing.assert_close(layer.loss(outputs, error), expected)
    common = torch.tensor([[2.0, 0.3], [0.3, 0.5]]).double()
    root = torch.linalg.inv(whitening)
    torch.testing.assert_close(covariance(whitening, common), root @ common @ root.mT)


def test_precisions_are_found_where_there_are_some_and_only_there():
    outputs, noise = normal(800, 5), normal(800, 2, seed=1)
    wide = (0.8 * outputs[:, :1]).exp()
    for error, constant in ((noise * wide, False), (noise, True)):
        layer = PrecisionLayer(5, 2).double()
        layer.fit((outputs[:600], error[:600]), (outputs[600:], error[600:]))
        found = layer(outputs).diagonal(dim1=-2, dim2=-1)
        if constant:
            assert (found - 1).abs().max() < 0.5
        else:
            slope = torch.linalg.lstsq(outputs, found.log() - found.log().mean(0)).solution
            assert (slope[0] + 0.8).abs().max() < 0.15
            assert slope[1:].abs().max() < 0.15
    assert not any(part.requires_grad for part in layer.parameters())


@pytest.mark.parametrize(("kind", "loss"), [("lstm", "mse"), ("gru", "mse"), ("lru", "likelihood")])
def test_raw_covariances_know_when_the_sensor_is_bad(kind, loss):
    """x says how noisy it is: where it is, errors are larger, and are known to be."""
    made = partial(FILTERS[kind], loss=loss)
    rng = np.random.default_rng(1000)
    level = rng.integers(0, 2, 600)
    z = rng.normal(size=(600, 1))
    x = np.stack([z[:, 0] + np.array([0.1, 2.0])[level] * rng.normal(size=600), level], 1)
    filt = made(**SMALL, noise=0.0, epochs=150, lr=1e-2).fit(x[:500], z[:500], trainer=QUIET)
    out = filt.filter(x[500:])
    sd = out.raw_cov[:, 0, 0].sqrt()
    error = (out.mean[:, 0] - torch.from_numpy(z[500:, 0])).abs()
    bad = torch.from_numpy(level[500:] == 1)
    assert error[bad].mean() > 2 * error[~bad].mean()
    assert sd[bad].mean() > 2 * sd[~bad].mean()


@pytest.mark.parametrize("kind", ["rkn", "kalman_nn"])
def test_beliefs_widen_in_a_gap_and_do_not_see_what_is_missing(kind):
    """By the model's own prediction, whether or not it was trained with gaps."""
    x, z, _ = pushed(120, 0)
    filt = FILTERS[kind](**SMALL, epochs=5).fit(x, z, trainer=QUIET)
    module = filt.recurrent
    rows = torch.randn(1, 6, module.n_features + 1, generator=torch.Generator().manual_seed(0))
    rows[..., -1] = torch.tensor([1.0, 1, 0, 0, 1, 1])
    other = rows.double()
    other[0, 2:4, :-1] += 5.0
    found = [module.recur(one.double(), None)[0] for one in (rows, other)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    whole = rows.double()
    whole[..., -1] = 1.0
    sizes = [
        torch.linalg.slogdet(module.whitening(module.recur(one, None)[0])).logabsdet
        for one in (rows.double(), whole)
    ]
    if kind == "kalman_nn":  # of the RKN, a network makes variances of those of the belief
        assert (sizes[0][0, 2:4] < sizes[1][0, 2:4]).all()
    assert not torch.equal(sizes[0][0, 2:], sizes[1][0, 2:])


def test_files_from_before_covariances_varied_answer_the_same():
    """Written by commit 6149bde; only the variance before the first frame is that of training."""
    with np.load(OLD / "answers.npz") as known:
        x, mean, raw, cov = (known[name] for name in ("x", "mean", "raw_cov", "cov"))
    out = load_filter(OLD / "best.ckpt").filter(x)
    np.testing.assert_allclose(out.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(out.raw_cov[1:], raw[1:], rtol=1e-9)
    np.testing.assert_allclose(out.cov[1:], cov[1:], rtol=1e-9)


def test_pieces_cut_sequences_elsewhere_in_every_epoch(monkeypatch):
    module, seen = GRUModule(encoder=SMALL["encoder"], shape=(3,), dz=2, chunk=6), set()
    for epoch in range(12):
        monkeypatch.setattr(GRUModule, "current_epoch", epoch)
        pieces = module.pieces([20, 3, 1])
        assert max(pieces) <= 6
        ends = np.cumsum(pieces).tolist()
        assert {20, 23, 24} <= set(ends)
        assert ends == sorted(set(ends))
        seen.add(ends[0])
    assert seen == {1, 2, 3, 4, 5, 6}


def test_random_gaps_hide_their_share_and_no_first_frame():
    torch.manual_seed(0)
    lengths = [5] * 200 + [19_000]
    seen = random_gaps(lengths, 0.2)
    assert seen[torch.tensor([0, *lengths[:-1]]).cumsum(0)].all()
    assert 0.17 < 1 - float(seen[1000:].double().mean()) < 0.23
    ends = (~seen[1001:] & seen[1000:-1]).sum()
    assert 4 < float((~seen[1000:]).sum() / ends) < 6
    psi = torch.arange(5.0).reshape(1, 5, 1)
    there = torch.tensor([[False, True, False, True, False]])
    assert hold(psi, there).flatten().tolist() == [1, 1, 1, 3, 3]
