"""Signals, lost workers and full disks: a saved state, a clear end, and the way on."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import lightning
import pytest
import torch

from kbr.core.errors import KbrError, Preempted
from kbr.core.io import checkpoint
from kbr.training import LearnedFilter, SoftArgmaxCNN

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
ROOT = Path(__file__).resolve().parent.parent
TRAINER = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "logger": False}
MODEL = partial(
    LearnedFilter,
    encoder=partial(SoftArgmaxCNN, channels=2, n_maps=2, hidden=4, n_features=3, dropout=0.2),
    epochs=8,
    val_every=2,
    checkpoint_every=3,
    n_fourier=16,
    lams=(1e-3, 1e-1),
    scales=(1.0,),
    coarse_scales=(1.0,),
)
LAST = Path("checkpoints") / "last.ckpt"
SMALL = [
    "data=dsprites",
    "data.n_train=40",
    "data.n_test=10",
    "model.compare_raw=false",
    "model.filter.n_fourier=16",
    "model.filter.checkpoint_every=5",
    "model.filter.patience=1000",
    "encoder.channels=2",
    "encoder.n_maps=2",
]


def sequence() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 2, generator=generator).double()
    return torch.randn(40, 1, 8, 8, generator=generator), z


def fitted(folder: Path, *callbacks: lightning.Callback, **kwargs: object) -> LearnedFilter:
    filt = MODEL()
    filt.fit(*sequence(), folder=folder, trainer={**TRAINER, "callbacks": callbacks}, **kwargs)
    return filt


class Send(lightning.Callback):
    """The cluster wants its machine back in the middle of an epoch."""

    def __init__(self, number: int, *, epoch: int) -> None:
        self.number, self.epoch = number, epoch

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_happened(tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(Preempted, match=r"saved .*last.ckpt.*resume="):
        fitted(tmp_path / "cut", Send(number, epoch=4))
    assert signal.getsignal(number) == before
    assert torch.load(tmp_path / "cut" / LAST, weights_only=True)["epoch"] == 4
    assert not (tmp_path / "cut" / "checkpoints" / "best.ckpt").exists()
    resumed = fitted(tmp_path / "cut", resume=tmp_path / "cut")
    whole = fitted(tmp_path / "whole")
    x, _ = sequence()
    assert torch.equal(resumed.filter(x).mean, whole.filter(x).mean)
    assert resumed.val_mse == whole.val_mse


def test_a_signal_in_the_last_epoch_changes_nothing(tmp_path):
    fitted(tmp_path, Send(signal.SIGTERM, epoch=7))
    assert (tmp_path / "checkpoints" / "best.ckpt").is_file()


def test_training_of_the_same_run_is_known_and_how_far_it_is(tmp_path):
    x, z = sequence()
    assert MODEL().training_in(tmp_path, x, z, 0) == "none"
    with pytest.raises(Preempted):
        fitted(tmp_path, Send(signal.SIGTERM, epoch=1))
    assert MODEL().training_in(tmp_path, x, z, 0) == "unfinished"
    assert MODEL().training_in(tmp_path, x, z, 1) == "none"
    assert MODEL(lr=1e-4).training_in(tmp_path, x, z, 0) == "none"
    assert MODEL().training_in(tmp_path, x + 1, z, 0) == "none"
    fitted(tmp_path, resume=tmp_path)
    assert MODEL().training_in(tmp_path, x, z, 0) == "finished"
    assert MODEL().training_in(tmp_path, x, z, 1) == "none"
    (tmp_path / LAST).write_bytes(b"damaged")
    assert MODEL().training_in(tmp_path, x, z, 0) == "none"


def test_training_that_kept_no_weights_begins_anew(tmp_path):
    """It says again what to change, instead of loading nothing."""
    x, z = sequence()
    fitted(tmp_path)
    content = torch.load(tmp_path / LAST, weights_only=True)
    for state in content["callbacks"].values():
        state["weights"] = {}
    torch.save(content, tmp_path / LAST)
    assert MODEL().training_in(tmp_path, x, z, 0) == "none"


def test_checkpoints_whose_entries_are_wrong_are_one_line(tmp_path):
    """Whole archives that lack an entry, have one more, or hold something else there."""
    fitted(tmp_path)
    best, last = tmp_path / "checkpoints" / "best.ckpt", tmp_path / LAST
    whole = torch.load(best, weights_only=True)
    wrong = [{k: v for k, v in whole.items() if k != name} for name in whole]
    wrong += [{**whole, name: value} for name in whole for value in (None, {})]
    for inner in ("hyper_parameters", "fitted", "network"):
        some = list(whole[inner])[:6]
        wrong += [{**whole, inner: {k: v for k, v in whole[inner].items() if k != s}} for s in some]
        wrong += [{**whole, inner: {**whole[inner], "unknown": 1}}]
    refused = []
    for content in wrong:
        torch.save(content, best)
        try:
            LearnedFilter.load(best)
        except KbrError as error:
            refused.append(str(error))
    assert not [message for message in refused if "\n" in message]
    assert len(refused) > 0.6 * len(wrong)  # the rest is not needed to filter
    content = torch.load(last, weights_only=True)
    for name in ("hyper_parameters", "seed", "data", "callbacks"):
        torch.save({k: v for k, v in content.items() if k != name}, last)
        with pytest.raises(KbrError, match=rf"last\.ckpt.*damaged.*{name}"):
            fitted(tmp_path, resume=tmp_path)


def test_ctrl_c_stops_after_the_epoch_and_twice_at_once(tmp_path):
    with pytest.raises(Preempted, match=r"Ctrl-C; saved .*last\.ckpt") as caught:
        fitted(tmp_path, Send(signal.SIGINT, epoch=4))
    assert caught.value.number == signal.SIGINT
    assert torch.load(tmp_path / LAST, weights_only=True)["epoch"] == 4
    send = [Send(signal.SIGINT, epoch=5), Send(signal.SIGINT, epoch=5)]
    with pytest.raises(Preempted, match="in the middle of an epoch"):
        fitted(tmp_path, *send, resume=tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert torch.load(tmp_path / LAST, weights_only=True)["epoch"] == 4


def test_a_full_disk_while_training_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    save, calls = lightning.Trainer.save_checkpoint, []

    def fails_later(self, path, **kwargs):
        calls.append(path)
        if len(calls) > 1:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(self, path, **kwargs)

    monkeypatch.setattr(lightning.Trainer, "save_checkpoint", fails_later)
    with pytest.raises(KbrError, match=r"last.ckpt: No space left on device.*intact"):
        fitted(tmp_path)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / LAST).parent.iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / LAST, weights_only=True)["epoch"] == 2
    resumed, whole = fitted(tmp_path, resume=tmp_path), fitted(tmp_path / "whole")
    assert resumed.val_mse == whole.val_mse


def test_a_write_that_finds_no_room_leaves_the_old_file(tmp_path):
    """A limit on the size of files, which the system enforces as it does a full disk."""
    path = tmp_path / "best.ckpt"
    checkpoint.save(path, {"kind": "old"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(KbrError, match=r"cannot write .*best.ckpt.*intact"):
            checkpoint.save(path, {"kind": "new", "numbers": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.load(path, kind="old")["kind"] == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["best.ckpt"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, f"hydra.run.dir={folder}"], stdout=pipe, stderr=pipe, text=True, cwd=ROOT
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not path.is_file():
        assert process.poll() is None, process.communicate()
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"no {path} after ten minutes")
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("trainer", ["cpu", "ddp_cpu"])
def test_sigterm_ends_a_run_and_the_same_command_goes_on(tmp_path, trainer):
    """As a requeued job does: the same command into the same folder."""
    arguments = [f"trainer={trainer}", "model.filter.epochs=150"]
    stopped = start(tmp_path, *arguments)
    wait_for(tmp_path / LAST, stopped)
    stopped.terminate()
    _, errors = stopped.communicate(timeout=600)
    assert stopped.returncode == 143, errors
    assert f"resume={tmp_path}" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "metrics.json").exists()
    again = start(tmp_path, *arguments)
    printed, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert "going on from" in printed
    assert json.loads((tmp_path / "metrics.json").read_text())["test/mse"] > 0


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_worker_that_dies_ends_the_run_with_a_message(tmp_path, victim):
    run = start(tmp_path, "trainer=ddp_cpu", "model.filter.epochs=100000")
    wait_for(tmp_path / LAST, run)
    (second,) = children(run.pid)
    os.kill(second if victim == "second" else run.pid, signal.SIGKILL)
    began = time.monotonic()
    _, errors = run.communicate(timeout=120)  # the pipe is open until the last worker has ended
    assert time.monotonic() - began < 60
    assert run.returncode != 0
    assert "workers has ended" in errors or "terminated with code -9" in errors
    assert checkpoint.load(tmp_path / LAST, kind=LearnedFilter.kind)["epoch"] > 0
