"""Trained filters: reproducible, resumable, reloadable, and clear about what they refuse."""

import multiprocessing
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import lightning
import pytest
import torch
from networks import FILTERS as NETWORKS
from torch import nn

from kbr.core.datasets.dynamics import Rotation
from kbr.core.errors import Diverged, KbrError
from kbr.core.io.checkpoint import plain, write_atomically
from kbr.core.kernels import Gaussian
from kbr.core.objectives import feature_loss
from kbr.training import MLP, GRUFilter, LearnedFilter, LSTMFilter, SoftArgmaxCNN
from kbr.training.callbacks.keeping import KeepBest
from kbr.training.data import SequenceData

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
TRAINER = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "logger": False}
CNN = partial(SoftArgmaxCNN, channels=4, n_maps=4, hidden=8, n_features=6, dropout=0.2)
COMMON = {"encoder": CNN, "epochs": 12, "val_every": 3, "checkpoint_every": 5, "lr": 1e-2}
LEARNED = {"n_fourier": 32, "lams": (1e-3, 1e-1), "scales": (1.0, 2.0), "coarse_scales": (1.0,)}
MODELS = {
    "learned": partial(LearnedFilter, **COMMON, **LEARNED),
    "lstm": partial(LSTMFilter, **COMMON, window=4, hidden=8),
    "gru": partial(GRUFilter, **COMMON, chunk=15, hidden=8, gaps=0.1),
}
EVERY = MODELS | {
    name: partial(NETWORKS[name], **COMMON) for name in ("lru", "rkn", "transformer", "kalman_nn")
}
EVERY["drawn pieces"] = partial(GRUFilter, **COMMON, chunk=8, hidden=8, gaps=0.1, batch=16)
CUT = [*((name, 11) for name in EVERY), *((name, 2) for name in MODELS)]


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


def sequence(n=60, seed=0):
    """A bright blot that runs around a ring in 16 x 16 pixels."""
    generator = torch.Generator().manual_seed(seed)
    angle = 0.4 * torch.arange(n) + 0.1 * torch.randn(n, generator=generator).cumsum(0)
    z = torch.stack([angle.cos(), angle.sin()], -1)
    u = torch.linspace(-1.5, 1.5, 16)
    across = -8 * (u - z[:, :1]).square().unsqueeze(-2)
    down = -8 * (u - z[:, 1:]).square().unsqueeze(-1)
    x = (across + down).exp().unsqueeze(1)
    return x + 0.05 * torch.randn(x.shape, generator=generator), z.double()


def fitted(model, folder, *, seed=0, **kwargs):
    filt = model()
    filt.fit(*sequence(), seed=seed, folder=folder, **{"trainer": TRAINER, **kwargs})
    return filt


class Stop(lightning.Callback):
    """Ends the process's training abruptly after some epochs."""

    def __init__(self, after):
        self.after = after

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.after:
            raise InterruptedError("stopped by the test")


@pytest.mark.parametrize("name", EVERY)
def test_fit_filter_and_reload_give_identical_means(name, tmp_path):
    filt = fitted(EVERY[name], tmp_path)
    x, _ = sequence(20, seed=1)
    out = filt.filter(x)
    assert out.mean.shape == (20, 2)
    assert out.cov.shape == (20, 2, 2)
    assert out.evidence.dtype == torch.bool
    assert out.mean.isfinite().all()
    assert filt.val_mse > 0
    assert 0 < filt.n_epochs <= 12
    again = type(filt).load(tmp_path / "checkpoints" / "best.ckpt")
    assert torch.equal(again.filter(x).mean, out.mean)
    assert torch.equal(again.filter(x).cov, out.cov)
    assert (again.val_mse, again.n_epochs, again.chosen) == (
        filt.val_mse,
        filt.n_epochs,
        filt.chosen,
    )
    assert again.hyper_parameters() == filt.hyper_parameters()
    stacked = filt.filter(torch.stack([x, x]))
    assert stacked.mean.shape == (2, 20, 2)
    torch.testing.assert_close(stacked.mean[1], out.mean)


def test_checkpoints_hold_plain_values_and_leave_no_temporary_files(model, tmp_path):
    fitted(model, tmp_path)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last.ckpt"]
    for path in folder.iterdir():
        content = torch.load(path, weights_only=True)
        assert content["kind"] == model().kind
        assert content["version"] == 1


def test_same_seed_twice_is_identical_and_another_is_not(model, tmp_path):
    x, _ = sequence(20, seed=1)
    torch.manual_seed(5)
    first = fitted(model, tmp_path / "a").filter(x).mean
    torch.manual_seed(6)
    before = torch.get_rng_state()
    assert torch.equal(fitted(model, tmp_path / "b").filter(x).mean, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(fitted(model, tmp_path / "c", seed=1).filter(x).mean, first)


@pytest.mark.parametrize(("name", "after"), CUT)  # after the second checkpoint, before the first
def test_a_run_interrupted_and_resumed_ends_like_one_that_was_not(name, tmp_path, after):
    model = EVERY[name]
    whole = fitted(model, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        fitted(model, tmp_path / "cut", trainer={**TRAINER, "callbacks": [Stop(after)]})
    assert not (tmp_path / "cut" / "checkpoints" / "best.ckpt").exists()
    resumed = fitted(model, tmp_path / "cut", resume=tmp_path / "cut")
    x, _ = sequence(20, seed=1)
    assert torch.equal(resumed.filter(x).mean, whole.filter(x).mean)
    assert resumed.val_mse == whole.val_mse
    assert resumed.n_epochs == whole.n_epochs


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    model = partial(MODELS["learned"], patience=1)
    whole = fitted(model, tmp_path / "a")
    again = fitted(model, tmp_path / "b", resume=tmp_path / "a")
    x, _ = sequence(20, seed=1)
    assert torch.equal(again.filter(x).mean, whole.filter(x).mean)
    assert again.n_epochs == whole.n_epochs


def test_resuming_with_other_settings_seed_or_data_is_refused(tmp_path):
    fitted(MODELS["lstm"], tmp_path)
    with pytest.raises(KbrError, match=r"lr \(was 0.01, is 0.1\)"):
        fitted(partial(MODELS["lstm"], lr=0.1), tmp_path, resume=tmp_path)
    with pytest.raises(KbrError, match="must keep its seed"):
        fitted(MODELS["lstm"], tmp_path, resume=tmp_path, seed=1)
    with pytest.raises(KbrError, match="must keep its training data"):
        MODELS["lstm"]().fit(*sequence(61), folder=tmp_path, trainer=TRAINER, resume=tmp_path)
    with pytest.raises(KbrError, match="no run folder"):
        fitted(MODELS["lstm"], tmp_path, resume=tmp_path / "elsewhere")


@pytest.mark.parametrize(("name", "lr"), [("lstm", 1e20), ("learned", 1e20), ("learned", 1e6)])
def test_diverged_training_says_so(tmp_path, name, lr):
    """Also if features are finite, but too large for the ridge of the loss."""
    model = partial(MODELS[name], lr=lr, encoder=partial(MLP, hidden=(), n_features=6))
    with pytest.raises(Diverged, match=r"diverged. Lower lr, now 1e"):
        fitted(model, tmp_path)


def test_early_stopping_keeps_the_best_weights(tmp_path):
    model = partial(MODELS["learned"], epochs=60, val_every=1, patience=2, lr=0.3)
    filt = fitted(model, tmp_path)
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] + 1 == filt.n_epochs + 2 < 60


class Crash:
    def __reduce__(self):
        return (os.system, ("echo this must never run",))


def test_bad_checkpoints_are_refused_with_advice(tmp_path):
    fitted(MODELS["lstm"], tmp_path)
    best, last = (tmp_path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    content = best.read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 1):
        cut = tmp_path / "cut.ckpt"
        cut.write_bytes(content[:size])
        with pytest.raises(KbrError, match="truncated"):
            LSTMFilter.load(cut)
    middle = bytearray(content)
    half = len(content) // 2
    middle[half : half + 2000] = bytes(2000)
    (tmp_path / "damaged.ckpt").write_bytes(bytes(middle))
    with pytest.raises(KbrError, match=r"lstm_filter|damaged"):
        LearnedFilter.load(tmp_path / "damaged.ckpt")
    with pytest.raises(KbrError, match=r"holds kbr.lstm_filter; expected kbr.learned_filter"):
        LearnedFilter.load(best)
    with pytest.raises(KbrError, match="middle of training"):
        LSTMFilter.load(last)
    with pytest.raises(KbrError, match="there is no checkpoint"):
        LSTMFilter.load(tmp_path / "none.ckpt")
    torch.save({"kind": "kbr.lstm_filter", "x": Crash()}, tmp_path / "code.ckpt")
    with pytest.raises(KbrError, match="holds code"):
        LSTMFilter.load(tmp_path / "code.ckpt")
    (tmp_path / "pickle.ckpt").write_bytes(pickle.dumps({"kind": "kbr.lstm_filter"}))
    with pytest.raises(KbrError, match="truncated or no checkpoint"):
        LSTMFilter.load(tmp_path / "pickle.ckpt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.ckpt")
    with pytest.raises(KbrError, match="no kbr model"):
        LSTMFilter.load(tmp_path / "other.ckpt")


class Own(SoftArgmaxCNN):
    pass


def test_a_file_does_not_choose_the_code_that_runs(tmp_path):
    model = partial(MODELS["lstm"], encoder=partial(Own, n_features=4))
    filt = fitted(model, tmp_path)
    best = tmp_path / "checkpoints" / "best.ckpt"
    with pytest.raises(KbrError, match="not one of kbr's own"):
        LSTMFilter.load(best)
    again = LSTMFilter.load(best, encoder=partial(Own, n_features=4))
    x, _ = sequence(5)
    assert torch.equal(again.filter(x).mean, filt.filter(x).mean)
    with pytest.raises(KbrError, match="does not fit the encoder"):
        LSTMFilter.load(best, encoder=partial(Own, n_features=5))


def _write_half(path):
    def write(temporary):
        temporary.write_text("ne")
        os.kill(os.getpid(), signal.SIGKILL)

    write_atomically(path, write)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_write_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "best.ckpt"
    write_atomically(path, lambda temporary: temporary.write_text("old"))
    child = multiprocessing.get_context("fork").Process(target=_write_half, args=(path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_missing_frame_is_flagged_and_harms_no_later_step(model, tmp_path):
    filt = fitted(model, tmp_path)
    x, _ = sequence(20, seed=1)
    x[0], x[7, 0, 3, 3] = torch.nan, torch.nan
    out = filt.filter(x)
    assert out.mean.isfinite().all()
    assert not out.evidence[0]
    assert not out.evidence[7]


def test_streaming_equals_filtering(tmp_path):
    filt = fitted(MODELS["learned"], tmp_path)
    x, _ = sequence(6, seed=1)
    means, belief = [], filt.init()
    for frame in x:
        belief = filt.step(belief, frame)
        means.append(belief.mean)
    # One frame at a time or all at once: the network rounds differently in single precision.
    torch.testing.assert_close(torch.stack(means), filt.filter(x).mean, rtol=1e-4, atol=1e-5)


def test_collapsed_features_are_reported(tmp_path):
    filt = partial(MODELS["learned"], lam=1e4)()
    with pytest.warns(UserWarning, match=r"collapsed.*Lower lam, now 10000"):
        filt.fit(*sequence(), seed=0, folder=tmp_path, trainer=TRAINER)
    assert filt.collapsed
    assert LearnedFilter.load(tmp_path / "checkpoints" / "best.ckpt").collapsed


class Losses(lightning.Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen.append(outputs["loss"])


def test_training_loss_is_the_closed_form_on_the_first_part(tmp_path):
    encoder = partial(CNN, dropout=0.0)
    filt = MODELS["learned"](noise=0.0, encoder=encoder, epochs=1)
    losses = Losses()
    x, z = sequence()
    filt.fit(x, z, folder=tmp_path, trainer={**TRAINER, "callbacks": [losses]})
    z = filt.units.z.apply(z)
    cut = SequenceData(x, z).cut
    assert cut == 40
    torch.manual_seed(0)  # as fit does
    untrained = encoder(shape=(1, 16, 16))
    scaled = (x[:cut] - x[:cut].mean()) / x[:cut].std(correction=0)
    expected = feature_loss(untrained(scaled), filt._get().targets(z[:cut]), lam=filt.lam)
    torch.testing.assert_close(losses.seen, [expected.detach()], rtol=1e-4, atol=0)


def test_targets_can_be_the_kernel_itself(tmp_path):
    x, z = sequence()
    filt = MODELS["learned"](targets="cholesky", scale=0.7)
    filt.fit(x, z, folder=tmp_path, trainer=TRAINER)
    z = filt.units.z.apply(z)
    phi = filt._get().targets(z[:40]).double()
    kernel = Gaussian(scale=0.7).fit(z[:40].double())
    torch.testing.assert_close(phi @ phi.mT, kernel(z[:40], z[:40]).double(), rtol=0, atol=1e-5)
    loaded = LearnedFilter.load(tmp_path / "checkpoints" / "best.ckpt")
    torch.testing.assert_close(loaded.filter(x).mean, filt.filter(x).mean)
    with pytest.raises(KbrError, match="fourier or cholesky"):
        LearnedFilter(targets="random")


def test_later_weights_are_kept_unless_clearly_worse():
    """Validation errors in order, and the one whose weights are kept in the end."""
    for errors, slack, kept, stopped in (
        ((1.0, 0.9, 1.1), 0.25, 3, False),
        ((1.0, 0.9, 1.2), 0.25, 2, False),
        ((1.0, 0.9, 1.1), 0.0, 2, False),
        ((0.5, 0.7, 0.6, 0.9), 0.25, 3, False),
        ((0.5, 0.7, 0.8), 0.25, 1, True),
    ):
        keep = KeepBest(Path("unused"), patience=2, every=100, slack=slack)
        for epoch, error in enumerate(errors):
            trainer = SimpleNamespace(
                callback_metrics={"val/mse": error}, current_epoch=epoch, should_stop=False
            )
            keep.on_validation_end(trainer, torch.nn.Linear(1, 1))
        assert (keep.epoch, keep.score) == (kept, errors[kept - 1])
        assert trainer.should_stop == stopped


def test_lstm_encodes_each_frame_once(tmp_path):
    rows = []

    class Counting(SoftArgmaxCNN):
        def forward(self, x):
            rows.append(len(x))
            return super().forward(x)

    model = partial(MODELS["lstm"], encoder=partial(Counting, n_features=4), epochs=1, val_every=1)
    filt = fitted(model, tmp_path)
    rows.clear()
    filt.filter(sequence(30)[0])
    assert sum(rows) == 30


def test_lstm_sees_its_window_and_no_further(tmp_path):
    filt = fitted(MODELS["lstm"], tmp_path)
    x, _ = sequence(20)
    other = x.clone()
    other[3] += 1.0
    change = (filt.filter(x).mean - filt.filter(other).mean).abs().sum(-1)
    assert (change[:3] < 1e-12).all()
    assert (change[3:7] > 1e-7).all()
    assert (change[7:] < 1e-6).all()


def test_vectors_through_the_papers_network(tmp_path):
    _, z = sequence()
    model = partial(MODELS["learned"], encoder=partial(MLP, hidden=(16, 8), n_features=4))
    filt = model()
    filt.fit(z + 0.1, z, folder=tmp_path, trainer=TRAINER)
    assert filt.filter(z[:7]).mean.shape == (7, 2)


def test_bad_input_is_refused_before_training(model, tmp_path):
    x, z = sequence()
    with pytest.raises(KbrError, match="not fitted"):
        model().filter(x)
    with pytest.raises(KbrError, match="same number of rows"):
        model().fit(x[1:], z, folder=tmp_path)
    with pytest.raises(KbrError, match="train on one sequence"):
        model().fit(x[None], z[None], folder=tmp_path)
    with pytest.raises(KbrError, match="SoftArgmaxCNN takes images"):
        model().fit(x.flatten(1), z, folder=tmp_path)
    with pytest.raises(KbrError, match="at least 6 training steps"):
        model().fit(x[:4], z[:4], folder=tmp_path)
    with pytest.raises(KbrError, match="epochs"):
        model(epochs=0)
    with pytest.raises(KbrError, match="noise"):
        model(noise=-1.0)
    assert not list(tmp_path.iterdir())


def test_an_lstm_has_the_noise_that_suits_its_observations(tmp_path):
    """Only there: other networks need a number."""
    x, z = sequence()
    frames = MODELS["lstm"](epochs=1).fit(x, z, folder=tmp_path / "frames", trainer=TRAINER)
    vectors = MODELS["lstm"](epochs=1, encoder=partial(MLP, hidden=(8,), n_features=4))
    vectors.fit(z + 0.1, z, folder=tmp_path / "vectors", trainer=TRAINER)
    assert (frames.recurrent.noise, vectors.recurrent.noise) == (0.5, 0.05)
    with pytest.raises(KbrError, match="noise must be at least 0; got None"):
        MODELS["gru"](noise=None)


def test_observations_of_another_shape_are_refused(model, tmp_path):
    filt = fitted(model, tmp_path)
    with pytest.raises(KbrError, match="as in training"):
        filt.filter(torch.zeros(5, 1, 16, 17))


def test_tensorboard_logs_are_written(tmp_path):
    trainer = {key: value for key, value in TRAINER.items() if key != "logger"}
    fitted(MODELS["lstm"], tmp_path, trainer=trainer)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_plain_turns_objects_into_strings(tmp_path):
    assert plain({"a": (1, 2.0), "b": tmp_path, "c": None}) == {
        "a": [1, 2.0],
        "b": str(tmp_path),
        "c": None,
    }


def test_with_one_value_of_each_setting_there_is_still_a_validation_error(tmp_path):
    data = Rotation().generate(n_train=90, n_test=10, seed=1)
    one = {"lams": (1e-3,), "scales": (1.0,), "coarse_scales": (1.0,)}
    filt = LearnedFilter(encoder=partial(MLP, hidden=(8,)), epochs=2, val_every=1, **one)
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    filt.fit(data.x_train.float(), data.z_train, folder=tmp_path, trainer=quiet)
    assert 0 < filt.val_mse < 1
