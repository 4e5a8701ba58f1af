"""Several workers train exactly as one does: loss, gradient, metrics, one run folder."""

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import pytest
import torch
from networks import MODULES
from omegaconf import OmegaConf
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kbr.app.run.trainer import launch_of, trainer_settings
from kbr.core.errors import KbrError
from kbr.core.objectives import feature_loss, feature_sums
from kbr.training.workers import (
    check_workers,
    is_lost,
    loss_over_workers,
    rows_of,
    sums_by_pieces,
)

ROOT = Path(__file__).resolve().parent.parent
COMMON = [
    "data=dsprites",
    "data.n_train=61",
    "data.n_test=20",
    "model.compare_raw=false",
    "model.filter.epochs=12",
    "model.filter.val_every=4",
    "model.filter.noise=0.0",
    "encoder.channels=4",
    "encoder.n_maps=4",
    "encoder.n_features=6",
]
# The smallest ridges magnify single-precision rounding.
SMALL = [
    *COMMON,
    "encoder.dropout=0.0",
    "model.filter.n_fourier=32",
    "model.filter.lams=[1e-3,1e-2,1e-1]",
]


def points(n: int = 61) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, phi = (torch.randn(n, d, generator=generator, dtype=torch.float64) for d in (5, 7))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 4)).double(), x, phi


def work(rank: int, world: int, folder: Path) -> None:
    """One worker's step as the trainer makes it: shares of the rows, gradients averaged by DDP."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    encoder, x, phi = points()
    encode = DistributedDataParallel(encoder)
    mine = rows_of(rank, world, len(x), piece=30)  # 30 and 31, or three times about 20
    part = sums_by_pieces(encode(x[mine]), phi[mine], piece=30)
    loss, total = loss_over_workers(part, lam=1e-4)
    torch.autograd.backward(loss)
    gradient = [p.grad for p in encoder.parameters()]
    torch.save([loss.detach(), total.n, *gradient], folder / f"{rank}.pt")
    os._exit(0)  # what counts is on disk; the end of a process group can wait for its peers forever


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_loss_and_gradient_of_uneven_shares_are_those_of_one_process(tmp_path, world):
    torch.multiprocessing.spawn(work, (world, tmp_path), nprocs=world)
    encoder, x, phi = points()
    loss = feature_loss(encoder(x), phi, lam=1e-4)
    torch.autograd.backward(loss)
    expected = [loss.detach(), len(x), *(p.grad for p in encoder.parameters())]
    for rank in range(world):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("n", "world"), [(5, 5), (41, 2), (200, 2), (201, 2), (1030, 4)])
def test_every_row_is_in_one_share(n, world):
    rows = [list(range(n))[rows_of(k, world, n, piece=100)] for k in range(world)]
    assert [row for share in rows for row in share] == list(range(n))
    assert all(rows)
    assert n < 100 * world or all(share[0] % 100 == 0 for share in rows)


@pytest.mark.parametrize("pieces", [3, 5, 8])
def test_sums_of_halves_are_those_of_one_worker_to_the_last_bit(pieces):
    """So that training, which amplifies rounding, ends with the same numbers."""
    _, x, phi = points(30 * pieces - 7)
    whole = sums_by_pieces(x, phi, piece=30)
    shares = [rows_of(rank, 2, len(x), piece=30) for rank in range(2)]
    first, second = (sums_by_pieces(x[mine], phi[mine], piece=30) for mine in shares)
    both = first + second
    assert torch.equal(both.second, whole.second)
    assert torch.equal(both.cross, whole.cross)
    assert both.energy == whole.energy
    assert both.n == whole.n == len(x)
    torch.testing.assert_close(whole.second, feature_sums(x, phi).second, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("n", "world"), [(41, 2), (41, 3), (7, 7)])
@pytest.mark.parametrize(
    "made",
    [
        *MODULES.values(),
        partial(MODULES["gru"], chunk=9, loss="likelihood"),
        partial(MODULES["rkn"], chunk=9, loss="mse"),
        partial(MODULES["kalman_nn"], chunk=100, loss="mse"),
    ],
)
def test_blocks_of_recurrent_models_average_to_their_loss(made, n, world):
    """Also for uneven blocks, for blocks shorter than the window, and inside a piece."""
    generator = torch.Generator().manual_seed(1)
    x, z = torch.randn(n, 3, generator=generator), torch.randn(n, 2, generator=generator)
    encoder = lambda shape: nn.Linear(*shape, 4)  # noqa: E731
    module = made(encoder=encoder, shape=(3,), dz=2, noise=0.0).double()
    module.fit_scales(x, z)
    x, z = x.double(), z.double()
    lengths = [len(z) // 3, len(z) - len(z) // 3]
    whole = module.share(x, z, lengths=lengths, rank=0, world=1)
    shares = torch.stack(
        [module.share(x, z, lengths=lengths, rank=k, world=world) for k in range(world)]
    )
    torch.testing.assert_close(shares.mean(), whole, rtol=1e-12, atol=0)
    trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
    names, weights = list(trained), list(trained.values())
    expected = dict(zip(names, torch.autograd.grad(whole, weights), strict=True))
    found = dict(zip(names, torch.autograd.grad(shares.mean(), weights), strict=True))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def settings(name: str, **changes: object) -> dict[str, object]:
    loaded = OmegaConf.load(ROOT / "configs" / "trainer" / f"{name}.yaml")
    return trainer_settings(OmegaConf.create({"trainer": {**loaded, **changes}}))


@pytest.fixture
def plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "TORCHELASTIC")) or name == "LOCAL_RANK":
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("plain_environment")
def test_settings_of_every_trainer(capsys, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert settings("cpu")["devices"] == settings("auto")["devices"] == 1
    assert settings("ddp_cpu")["devices"] == 2
    assert settings("ddp_cpu")["num_nodes"] == 1
    assert settings("ddp_cpu", devices=8)["devices"] == 8
    assert "8 workers share 2" in capsys.readouterr().out
    with pytest.raises(KbrError, match=r"devices=64, and this machine has 2 CPU.*at most 2"):
        settings("ddp_cpu", devices=64)


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("cpu", {"devices": 2}, "trainer=ddp_cpu"),
        ("ddp_cpu", {"devices": 0}, "1 or more; got 0"),
        ("ddp_cpu", {"devices": "many"}, "got many"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, changes, words):
    with pytest.raises(KbrError, match=words):
        settings(name, **changes)


@pytest.mark.usefixtures("plain_environment")
def test_more_gpus_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KbrError, match=r"trainer=ddp needs a CUDA device.*trainer=ddp_cpu"):
        settings("ddp")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert settings("ddp")["devices"] == 4
    with pytest.raises(KbrError, match=r"trainer.devices=8, and this machine has 4 GPU"):
        settings("ddp", devices=8)


def test_torchrun_and_srun_say_how_many_workers_there_are(monkeypatch, plain_environment):
    elastic = {"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    found = launch_of(elastic)
    assert (found.rank, found.size, found.nodes, found.is_first) == (3, 4, 2, False)
    slurm = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}
    found = launch_of(slurm)
    assert (found.rank, found.size, found.nodes, found.is_first) == (0, 8, 2, True)
    assert launch_of({"LOCAL_RANK": "1"}).is_first is False
    assert launch_of({}).is_first
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    made = settings("ddp_cpu")
    assert (made["devices"], made["num_nodes"]) == (4, 2)
    with pytest.raises(KbrError, match="8 process"):
        settings("cpu")
    monkeypatch.delenv("SLURM_STEP_ID")
    with pytest.raises(KbrError, match="put srun before python"):
        settings("ddp_cpu")


def test_what_several_workers_cannot_do_is_refused():
    check_workers(3, points=3, mixed=False, device="cpu")
    check_workers(1, points=3, mixed=True, device="cpu")
    check_workers(2, points=3, mixed=True, device="cuda")
    with pytest.raises(KbrError, match=r"4 workers need at least 4 points.*there are 3"):
        check_workers(4, points=3, mixed=False, device="cpu")
    with pytest.raises(KbrError, match=r"batch normalisation.*encoder=cnn"):
        check_workers(2, points=3, mixed=True, device="cpu")


def test_lost_workers_are_told_from_bugs():
    assert is_lost(RuntimeError("[pair.cc:537] Connection closed by peer [127.0.0.1]:3381"))
    assert is_lost(RuntimeError("Timed out waiting 600000ms for recv operation to complete"))
    assert not is_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"))


def launch(command: list[str], **environment: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    known = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "KBR_RUN"))}
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env={**known, **environment}
    )


def train(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return launch([*command, f"hydra.run.dir={folder}"])


def metrics(folder: Path) -> dict[str, float]:
    read = json.loads((folder / "metrics.json").read_text())
    return {name: read[name] for name in ("test/mse", "val/mse", "fit/epochs")}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("model", ["iw_nn", "lstm"])
def test_two_processes_end_with_the_metrics_of_one(tmp_path, model):
    given = SMALL if model == "iw_nn" else [*COMMON, "model=lstm"]
    found = {}
    for name in ("cpu", "ddp_cpu"):
        done = train(tmp_path / name, *given, f"trainer={name}")
        printed, errors = done.communicate(timeout=600)
        assert done.returncode == 0, errors
        assert printed.count("test/mse ") == 1
        found[name] = metrics(tmp_path / name)
    assert found["ddp_cpu"] == pytest.approx(found["cpu"], rel=1e-4)
    left = {path.name for path in (tmp_path / "ddp_cpu").iterdir()}
    assert left == {path.name for path in (tmp_path / "cpu").iterdir()}


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_torchrun_on_two_nodes_leaves_one_run_folder(tmp_path):
    alone = train(tmp_path / "alone", *SMALL, "trainer=cpu")
    assert alone.communicate(timeout=600)[0]
    end = f"--rdzv-endpoint=localhost:{free_port()}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    rendezvous = ["--rdzv-id=both", "--rdzv-backend=c10d", end, "--local-addr=127.0.0.1"]
    here = f"hydra.run.dir={tmp_path}/runs/${{oc.env:KBR_RUN_ID}}"
    job = [str(ROOT / "train.py"), *SMALL, "trainer=ddp_cpu", here]
    nodes = [launch([*torchrun, *rendezvous, *job]) for _ in range(2)]
    printed = ""
    for node in nodes:
        out, errors = node.communicate(timeout=600)
        assert node.returncode == 0, errors
        printed += out
    assert printed.count("test/mse ") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["both"]
    assert metrics(tmp_path / "runs" / "both") == pytest.approx(metrics(tmp_path / "alone"), 1e-4)
