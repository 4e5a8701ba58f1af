"""Networks beside the LSTM and GRU: each against a loop of its equations, and what it learns."""

from functools import partial

import pytest
import torch
from networks import ENCODER, FILTERS, MODULES

from kbr import KbrError
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.filters.result import mean_squared_error
from kbr.training import MLP, LSTMFilter
from kbr.training.modules.kalman_nn import KalmanCell, KalmanReadout
from kbr.training.modules.lru import LinearUnit, scan
from kbr.training.modules.rkn import corrected, moved, packed, unpacked
from kbr.training.modules.transformer import Attention

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
)
QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "logger": False}


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("steps", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("begun", [False, True])
def test_the_scan_of_linear_units_is_their_recurrence(steps, begun):
    moves = normal(2, steps, 5, dtype=torch.complex128).requires_grad_()
    decay = torch.polar(torch.linspace(0.1, 0.999, 5), torch.linspace(0, 3, 5)).to(moves)
    decay = decay.requires_grad_()
    start = normal(2, 5, seed=1, dtype=torch.complex128) if begun else None
    state, states = torch.zeros(2, 5).to(moves) if start is None else start, []
    for move in moves.unbind(1):
        state = decay * state + move
        states.append(state)
    slow, fast = torch.stack(states, 1), scan(decay, moves, start)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(slow.abs().square().sum(), [decay, moves], allow_unused=True)
    found = torch.autograd.grad(fast.abs().square().sum(), [decay, moves], allow_unused=True)
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs is not None and mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_linear_units_forget_and_keep_their_size():
    """Whatever the weights: |lambda| < 1, and states of white inputs have about their variance."""
    torch.manual_seed(0)
    unit = LinearUnit(6).double()
    size = unit.decay.abs()
    assert (size > 0.5).all()
    assert (size < 0.99).all()
    torch.nn.init.normal_(unit.log_rate, std=3.0)
    assert (unit.decay.abs() < 1).all()
    moves = normal(1, 4000, 6, dtype=torch.complex128)
    with torch.no_grad():
        unit.log_rate.fill_(-3.0)
        gamma = (1 - unit.decay.abs().square()).sqrt()
        states = scan(unit.decay, gamma * moves, None)
    spread = states.abs().square().mean(1)
    assert ((spread > 0.6) & (spread < 1.6)).all()


def test_attention_is_that_of_a_loop_over_steps_and_heads():
    torch.manual_seed(0)
    layer = Attention(6, 3, 2).double()
    torch.nn.init.normal_(layer.position)
    rows, width, window = normal(2, 8, 6), 3, 3
    with torch.no_grad():
        known = layer.norm(torch.cat([layer.before.expand(2, -1, -1), rows], 1))
        queries, (keys, values) = layer.query(known), layer.key_value(known).chunk(2, -1)
        mixed = torch.zeros_like(rows)
        for sequence in range(2):
            for step in range(8):
                for head in range(2):
                    part, now = slice(head * width, (head + 1) * width), step + window - 1
                    score = torch.stack(
                        [
                            queries[sequence, now, part]
                            @ keys[sequence, now - back, part]
                            / width**0.5
                            + layer.position[head, back]
                            for back in range(window)
                        ]
                    ).softmax(0)
                    for back in range(window):
                        mixed[sequence, step, part] += (
                            score[back] * values[sequence, now - back, part]
                        )
        expected = rows + layer.output(mixed)
        expected = expected + layer.wide(layer.second_norm(expected))
        found, after = layer(rows, None)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(after, rows[:, -2:])
        late, _ = layer(rows[:, 4:], rows[:, 2:4])
        torch.testing.assert_close(late, expected[:, 4:])


def test_a_transformer_looks_as_far_back_as_its_layers_do():
    module = MODULES["transformer"](encoder=ENCODER, shape=(3,), dz=2).double()
    rows, other = normal(1, 20, 4), normal(1, 20, 4)
    other[0, 8] += 1.0
    change = (module.recur(other, None)[0] - module.recur(rows, None)[0]).detach().abs().sum(-1)[0]
    assert (change[:8] == 0).all()
    assert (change[8 : 8 + module.memory + 1] > 0).all()
    assert (change[8 + module.memory + 1 :] == 0).all()


def dense(cov):
    """The 2m x 2m matrix of diagonal blocks."""
    return torch.cat([torch.cat([torch.diag(part) for part in row], 1) for row in cov], 0)


def blocks_of(matrix, m):
    parts = matrix.reshape(2, m, 2, m).permute(0, 2, 1, 3)
    return torch.diagonal(parts, dim1=-2, dim2=-1)


def test_the_factorised_update_is_that_of_a_kalman_filter_with_block_matrices():
    m, r, value = 5, normal(5, seed=1).exp(), normal(5, seed=2)
    mean, root = normal(2, m, seed=3), normal(2, 2, m, seed=4)
    cov = torch.einsum("iam,jam->ijm", root, root)
    show = torch.cat([torch.eye(m), torch.zeros(m, m)], 1).double()
    whole = dense(cov)
    gain = whole @ show.mT @ torch.linalg.inv(show @ whole @ show.mT + torch.diag(r))
    wanted = mean.flatten() + gain @ (value - mean[0])
    left = whole - gain @ show @ whole
    found, found_cov = corrected(mean, cov, value, r, torch.ones(1).double())
    torch.testing.assert_close(found.flatten(), wanted)
    torch.testing.assert_close(dense(found_cov), left)
    unseen = corrected(mean, cov, value, r, torch.zeros(1).double())
    torch.testing.assert_close(unseen, (mean, cov), rtol=0, atol=0)
    torch.testing.assert_close(unpacked(packed(mean, cov)), (mean, cov), rtol=0, atol=0)


@pytest.mark.parametrize("band", [0, 1, 4])
def test_the_factorised_prediction_keeps_the_diagonals_of_the_dense_one(band):
    m = 5
    bands, mean, root = normal(2, 2, m, 2 * band + 1), normal(2, m, seed=1), normal(2, 2, m, seed=2)
    cov = torch.einsum("iam,jam->ijm", root, root)
    matrix = torch.zeros(2, m, 2, m).double()
    for i in range(m):
        for k in range(max(0, i - band), min(m, i + band + 1)):
            matrix[:, i, :, k] = bands[:, :, i, k - i + band]
    matrix = matrix.reshape(2 * m, 2 * m)
    found, found_cov = moved(bands, mean, cov)
    torch.testing.assert_close(found.flatten(), matrix @ mean.flatten())
    torch.testing.assert_close(found_cov, blocks_of(matrix @ dense(cov) @ matrix.mT, m))


def test_kalman_nn_is_a_kalman_filter_with_control_inputs_and_gaps():
    torch.manual_seed(0)
    cell, psi, u = KalmanCell(3, 2, 4, 2).double(), normal(1, 9, 3), normal(1, 9, 2, seed=1)
    for part in (cell.shift, cell.noise, cell.show):
        torch.nn.init.normal_(part)
    one, show, readout = torch.eye(4).double(), cell.show, KalmanReadout(2)
    mean, cov, belief = torch.zeros(4).double(), one, cell.start(psi[:, 0])
    value, variance = cell.observe(psi)
    with torch.no_grad():
        matrix, noise = cell.dynamics()
        torch.testing.assert_close(noise, cell.noise @ cell.noise.mT + 1e-4 * one)
        for t in range(9):
            if t > 0:
                mean = matrix @ mean + cell.push(u[0, t]) + cell.shift
                cov = matrix @ cov @ matrix.mT + noise
                belief = cell.predict(belief, u[:, t], matrix, noise)
            seen = torch.tensor([[float(t not in (3, 4))]]).double()
            belief = cell.update(belief, value[:, t], variance[:, t], seen)
            if seen:
                spread = show @ cov @ show.mT + torch.diag(variance[0, t])
                gain = cov @ show.mT @ torch.linalg.inv(spread)
                mean = mean + gain @ (value[0, t] - show @ mean)
                cov = cov - gain @ show @ cov
            torch.testing.assert_close(belief[0], torch.cat([mean, cov.flatten()]))
            outputs = cell.shown(belief)[0]
            root = torch.linalg.inv(readout.whitening(outputs))
            torch.testing.assert_close(readout(outputs), show @ mean)
            torch.testing.assert_close(root @ root.mT, show @ cov @ show.mT, rtol=1e-6, atol=1e-7)


def test_kalman_nn_is_stable_whatever_its_weights():
    """A million steps without a frame: variances stay finite."""
    cell = KalmanCell(3, 0, 4, 2)
    torch.nn.init.normal_(cell.matrix, std=10.0)
    matrix, noise = cell.dynamics()
    assert torch.linalg.matrix_norm(matrix, ord=2) < 0.9991
    power, cov = matrix, noise
    for _ in range(20):  # doubling
        power, cov = power @ power, cov + power @ cov @ power.mT
    assert cov.isfinite().all()
    assert cov.diagonal().max() < 1e3 * noise.diagonal().max()
    calm = KalmanCell(3, 0, 4, 2)
    torch.nn.init.constant_(calm.matrix, 0.1)
    torch.testing.assert_close(calm.dynamics()[0], calm.matrix.double())


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        ("rkn", {"hidden": 7}, "hidden must be even"),
        ("rkn", {"band": -1}, "band must be at least 0"),
        ("transformer", {"hidden": 7}, "hidden must be a multiple of heads = 2"),
        ("lstm", {"loss": "mae"}, "loss must be one of mse, likelihood; got mae"),
    ],
)
def test_settings_that_fit_nothing_are_refused(kind, wrong, says):
    with pytest.raises(KbrError, match=says):
        FILTERS[kind](**wrong)


def test_a_latent_state_holds_all_of_z():
    x, z = normal(40, 2), normal(40, 4, seed=1)
    with pytest.raises(KbrError, match="hidden must be at least 4, the size of z; got 3"):
        FILTERS["kalman_nn"](encoder=ENCODER).fit(x, z, trainer=QUIET)


LEARNING = {"encoder": partial(MLP, hidden=(32,), n_features=16), "lr": 1e-2, "noise": 0.1}
SIZES = {
    "lstm": {"hidden": 32, "epochs": 25},
    "gru": {"hidden": 32, "epochs": 25},
    "lru": {"hidden": 32, "epochs": 25},
    "rkn": {"hidden": 16, "epochs": 40},
    "transformer": {"hidden": 32, "epochs": 25},
    "kalman_nn": {"hidden": 4, "epochs": 40, "chunk": 20},
}


@pytest.fixture(scope="module")
def ring():
    return Oscillatory(sigma_x=0.7, sigma_z=0.1).generate(n_train=600, n_test=600, seed=1000)


def scores(filt, data):
    """Squared error, and the mean log-likelihood of the truth, raw covariances."""
    filt.fit(data.x_train, data.z_train, trainer=QUIET)
    out = filt.filter(data.x_test)
    exact = torch.distributions.MultivariateNormal(out.mean, out.raw_cov)
    error = mean_squared_error(out.mean, data.z_test)
    return float(error), float(exact.log_prob(data.z_test).mean())


@pytest.fixture(scope="module")
def frame_by_frame(ring):
    """The same encoder without memory."""
    return scores(LSTMFilter(**LEARNING, window=1, epochs=25), ring)


@pytest.mark.parametrize("kind", SIZES)
def test_memory_is_worth_its_while(kind, ring, frame_by_frame):
    made = FILTERS[kind].func(**LEARNING, **SIZES[kind])
    error, likelihood = scores(made, ring)
    assert error < 0.6 * frame_by_frame[0]
    assert likelihood > frame_by_frame[1] + 0.4
