"""What the trained filters share: training by Lightning, resuming, checkpoints.

A subclass says which module is trained, what is fitted after training, and how it filters.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import lightning
import torch
from jaxtyping import Bool, Float
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from kbr.core import checkpoint
from kbr.core.errors import KbrError, Preempted
from kbr.core.filters.result import FilterResult
from kbr.core.filters.sequences import training_sequences
from kbr.core.inputs import ArrayLike, as_tensor, check_positive
from kbr.training.callbacks import KeepBest
from kbr.training.data import SequenceData
from kbr.training.encoders import SoftArgmaxCNN, check_sizes
from kbr.training.sequence_module import SequenceModule
from kbr.training.workers import check_workers, is_lost

ENCODE_ROWS = 512  # frames encoded at once when filtering
Encoder = Callable[..., nn.Module]


@dataclass(kw_only=True, eq=False, repr=False)
class TrainedFilter(ABC):
    """A filter whose network is trained; `encoder(shape=...)` builds the network.

    epochs         full-batch steps at most;
    noise          augmentation, in standard deviations of the observations;
    dropout        passed on to the encoder; None leaves the encoder's own;
    val_every      epochs between two looks at the validation error;
    slack          later weights are kept unless they validate worse than the best by this share;
    patience       looks in a row that are worse than that before training stops;
    log_every, checkpoint_every   epochs; both cost more than a small network's step.
    """

    encoder: Encoder = field(default_factory=lambda: partial(SoftArgmaxCNN))
    epochs: int = 150
    lr: float = 3e-3
    weight_decay: float = 0.0
    noise: float = 1.0
    dropout: float | None = None
    val_every: int = 10
    slack: float = 0.25
    patience: int = 6
    log_every: int = 10
    checkpoint_every: int = 25

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        self.val_mse = float("nan")
        self.chosen: dict[str, float] = {}
        self.edges: tuple[str, ...] = ()  # grid edges that the last fit chose, in words
        self.n_epochs = 0
        self._module: SequenceModule | None = None
        self._shape: tuple[int, ...] = ()
        self._dz = 0
        self._lengths: list[int] = []  # of the training sequences
        counts = ("epochs", "val_every", "patience", "log_every", "checkpoint_every")
        check_sizes(**{name: getattr(self, name) for name in counts})
        check_positive(float(self.lr), name="lr")
        for name in ("noise", "weight_decay", "slack"):
            if not getattr(self, name) >= 0:
                raise KbrError(f"{name} must be at least 0; got {getattr(self, name)}. Set {name}.")

    def __repr__(self) -> str:
        state = f"val_mse={self.val_mse:.4g}" if self._module is not None else "not fitted"
        return f"{type(self).__name__}({state})"

    @abstractmethod
    def build(
        self, encoder: nn.Module, x: Tensor, z: Tensor, shared: dict[str, Any]
    ) -> SequenceModule:
        """The module to train on x and z (the part before the validation block)."""

    @abstractmethod
    def finish(self, module: SequenceModule, x: Tensor, z: Tensor) -> None:
        """What is fitted once the network is trained, on all training steps."""

    @abstractmethod
    def fitted_state(self) -> dict[str, Any]:
        """Plain values and tensors from which `restore` rebuilds what `finish` made."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None: ...

    @abstractmethod
    def filter(self, x: ArrayLike) -> FilterResult: ...

    def fit(
        self,
        x_train: ArrayLike | Sequence[ArrayLike],
        z_train: ArrayLike | Sequence[ArrayLike],
        *,
        seed: int = 0,
        folder: Path,
        trainer: dict[str, Any] | None = None,
        resume: Path | None = None,
    ) -> None:
        """Train on x [T, ...] and z [T, dz], or on lists of sequences; leaves checkpoints and
        TensorBoard logs in `folder`.

        `trainer` holds arguments of `lightning.Trainer`. `resume` is the run folder to continue; a
        run stopped before its first checkpoint starts anew, which comes to the same.
        """
        x, z, self._lengths, shape = training_sequences(x_train, z_train)
        if z.ndim != 2:
            raise KbrError(
                f"{type(self).__name__} trains on one sequence, z [T, dz], or a list of them; "
                f"got z of shape {tuple(z.shape)}. Pass a list, or loop over data sets."
            )
        folder = Path(folder)
        x, z = x.to(torch.float32).reshape(-1, *shape), z.to(torch.float64)
        data = SequenceData(x, z, self._lengths)
        record = self._record(x, z, self._lengths, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # networks draw their first weights from the global generator
            encoder = self._build_encoder(shape)
            shared = {
                "epochs": self.epochs,
                "lr": self.lr,
                "weight_decay": self.weight_decay,
                "noise": self.noise,
                "seed": seed,
                "log_every": self.log_every,
                "record": record,
            }
            module = self.build(encoder, x[: data.cut], z[: data.cut], shared)
        keep = KeepBest(
            folder / "checkpoints" / "last.ckpt",
            patience=self.patience,
            slack=self.slack,
            every=self.checkpoint_every,
        )
        keep.path.parent.mkdir(parents=True, exist_ok=True)
        start = None if resume is None else self._last_checkpoint(Path(resume), record)
        first = self._train(module, data, keep, folder, trainer or {}, start)
        module.load_state_dict(keep.weights)
        module.to(device="cpu", dtype=torch.float32).eval()
        self._module, self._shape, self._dz = module, shape, z.shape[-1]
        self.n_epochs, self.val_mse = keep.epoch, keep.score
        self.finish(module, x, z)
        if first:
            self.save(folder / "checkpoints" / "best.ckpt")

    def _train(
        self,
        module: SequenceModule,
        data: SequenceData,
        keep: KeepBest,
        folder: Path,
        arguments: dict[str, Any],
        start: Path | None,
    ) -> bool:
        """Run Lightning; whether this process is the one that writes."""
        settings: dict[str, Any] = {
            "max_epochs": self.epochs,
            "default_root_dir": folder,
            "check_val_every_n_epoch": min(self.val_every, self.epochs),
            "log_every_n_steps": 1,  # the modules log rarely enough
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,  # the modules share the rows out themselves
            "sync_batchnorm": module.mixes_rows and "strategy" in arguments,
        }
        if "logger" not in arguments:
            settings["logger"] = TensorBoardLogger(save_dir=folder, name="tensorboard", version="")
        callbacks = [keep, *arguments.get("callbacks", ())]
        runner = lightning.Trainer(**{**settings, **arguments, "callbacks": callbacks})
        if start is not None:
            state = checkpoint.load(start, kind=self.kind)["callbacks"][keep.state_key]
            if state["finished"]:  # nothing left to train: Lightning would start a further epoch
                keep.load_state_dict(state)
                return bool(runner.is_global_zero)
        check_workers(
            runner.world_size,
            points=data.cut,
            mixed=module.mixes_rows,
            device=runner.strategy.root_device.type,
        )
        try:
            runner.fit(module, datamodule=data, ckpt_path=start)
        except RuntimeError as error:
            if runner.world_size == 1 or not is_lost(error):
                raise
            raise KbrError(
                f"another of the {runner.world_size} workers has ended or cannot be reached "
                f"({str(error).partition('. ')[0]}). Go on from the last checkpoint with "
                f"resume={folder}."
            ) from error
        if keep.preempted:
            raise Preempted(f"stopped by a signal; saved {keep.path}. Go on: resume={folder}")
        if not keep.weights:
            raise KbrError(
                "training ended without a finite validation error, so no weights were kept. Lower "
                "lr, or raise lam."
            )
        return bool(runner.is_global_zero)

    def save(self, path: str | Path) -> None:
        """Everything needed to filter, as tensors and plain values."""
        module = self._get()
        content = {
            "kind": self.kind,
            "version": checkpoint.VERSION,
            **{key: value for key, value in module.record.items() if key != "kind"},
            "shape": list(self._shape),
            "dz": self._dz,
            "val_mse": self.val_mse,
            "n_epochs": self.n_epochs,
            "chosen": self.chosen,
            "network": {name: value.cpu() for name, value in module.state_dict().items()},
            "fitted": self.fitted_state(),
        }
        checkpoint.save(Path(path), content)

    @classmethod
    def load(cls, path: str | Path, *, encoder: Encoder | None = None) -> Self:
        """A fitted filter from best.ckpt; `encoder` is needed if its class is not part of kbr."""
        content = checkpoint.load(path, kind=cls.kind)
        if "fitted" not in content:
            raise KbrError(
                f"{path} is a checkpoint from the middle of training; it holds no filter yet. Load "
                "best.ckpt, or finish the run first (resume=<run folder>)."
            )
        hyper = content["hyper_parameters"]
        made = cls(**{**hyper, "encoder": encoder or _known_encoder(hyper["encoder"])})
        shape, dz = tuple(content["shape"]), content["dz"]
        record = {key: content[key] for key in ("kind", "hyper_parameters", "seed", "data")}
        shared = {
            "epochs": made.epochs,
            "lr": made.lr,
            "weight_decay": made.weight_decay,
            "noise": made.noise,
            "seed": content["seed"],
            "log_every": made.log_every,
            "record": record,
        }
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced just below
            module = made.build(
                made._build_encoder(shape), torch.zeros(2, *shape), torch.randn(2, dz), shared
            )
        try:
            module.load_state_dict(content["network"])
        except RuntimeError as error:
            raise KbrError(
                f"the network in {path} does not fit the encoder it names. Pass the encoder it was "
                f"trained with. ({error})"
            ) from error
        made._module, made._shape, made._dz = module.eval(), shape, dz
        made.val_mse, made.n_epochs = content["val_mse"], content["n_epochs"]
        made.chosen = content["chosen"]
        made.restore(content["fitted"])
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self._shape

    def to(self, device: str | torch.device) -> Self:
        """Move the network; results are on the CPU."""
        self._get().to(device)
        return self

    @torch.no_grad()
    def encode(
        self, x: ArrayLike
    ) -> tuple[Float[Tensor, "s t d"], Bool[Tensor, "s t"], tuple[int, ...]]:
        """Features of x [*s T ...] on the CPU, which frames are there (no NaN), and *s."""
        module = self._get()
        tensor = as_tensor(x, name="x").to(torch.float32)
        lead = tensor.shape[: tensor.ndim - len(self._shape)]
        if not lead or tuple(tensor.shape[len(lead) :]) != self._shape:
            raise KbrError(
                f"observations x must have shape {['...', 'T', *self._shape]}, as in training; got "
                f"{list(tensor.shape)}."
            )
        rows = tensor.reshape(-1, *self._shape)
        seen = rows.flatten(1).isfinite().all(1)
        kept = seen.reshape(-1, *(1,) * len(self._shape))
        rows = torch.where(kept, rows, torch.zeros_like(rows))
        module.eval()
        device = module.x_mean.device
        psi = torch.cat(
            [module.encode(part.to(device)).cpu() for part in torch.split(rows, ENCODE_ROWS)]
        )
        steps = lead[-1]
        return psi.reshape(-1, steps, psi.shape[-1]), seen.reshape(-1, steps), tuple(lead[:-1])

    def gaze(self, x: ArrayLike) -> tuple[Tensor, Tensor] | None:
        """What the encoder looks at in frames x [b c h w]; see `SequenceModule.gaze`."""
        module = self._get()
        return module.gaze(as_tensor(x, name="x").to(module.x_mean))

    def _build_encoder(self, shape: tuple[int, ...]) -> nn.Module:
        given = {} if self.dropout is None else {"dropout": self.dropout}
        return self.encoder(shape=shape, **given)

    def hyper_parameters(self) -> dict[str, Any]:
        """The constructor's arguments as plain values; the encoder as its class and arguments."""
        made = {f.name: checkpoint.plain(getattr(self, f.name)) for f in fields(self)}
        return {**made, "encoder": _describe_encoder(self.encoder)}

    def _record(self, x: Tensor, z: Tensor, lengths: list[int], seed: int) -> dict[str, Any]:
        digest = hashlib.sha256(x.numpy(force=True).tobytes() + z.numpy(force=True).tobytes())
        digest.update(repr(lengths).encode())
        return {
            "kind": self.kind,
            "hyper_parameters": self.hyper_parameters(),
            "seed": seed,
            "data": digest.hexdigest(),
        }

    def _last_checkpoint(self, run: Path, record: dict[str, Any]) -> Path | None:
        """The run's last.ckpt, checked to be of this very run: settings, seed and data."""
        if not run.is_dir():
            raise KbrError(f"there is no run folder {run} to resume. Set resume to one.")
        path = run / "checkpoints" / "last.ckpt"
        if not path.is_file():
            return None
        content = checkpoint.load(path, kind=self.kind)
        then, now = content["hyper_parameters"], record["hyper_parameters"]
        changed = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
        if changed:
            pairs = ", ".join(f"{key} (was {then.get(key)}, is {now.get(key)})" for key in changed)
            raise KbrError(f"a resumed run must keep its settings; changed: {pairs}.")
        for key, name in (("seed", "seed"), ("data", "training data")):
            if content[key] != record[key]:
                raise KbrError(f"a resumed run must keep its {name}; the one in {path} differs.")
        return path

    def was_interrupted(
        self,
        run: Path,
        x_train: ArrayLike | Sequence[ArrayLike],
        z_train: ArrayLike | Sequence[ArrayLike],
        seed: int,
    ) -> bool:
        """Whether `run` holds unfinished training of this very run, to go on with."""
        if not (run / "checkpoints" / "last.ckpt").is_file():
            return False
        x, z, lengths, _ = training_sequences(x_train, z_train)
        try:
            path = self._last_checkpoint(run, self._record(x.float(), z.double(), lengths, seed))
            states = checkpoint.load(path or "", kind=self.kind)["callbacks"]
        except KbrError:
            return False  # of other settings or other data, or damaged: begin anew
        return not any(state.get("finished") for state in states.values())

    def _get(self) -> SequenceModule:
        if self._module is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train, ...) first.")
        return self._module


def _describe_encoder(encoder: Encoder) -> dict[str, Any]:
    function = encoder.func if isinstance(encoder, partial) else encoder
    arguments = encoder.keywords if isinstance(encoder, partial) else {}
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"target": f"{function.__module__}.{name}", "arguments": checkpoint.plain(arguments)}


def _known_encoder(described: dict[str, Any]) -> Encoder:
    """The encoder a checkpoint names, if it is kbr's own: a file does not choose what to run."""
    module, _, name = described["target"].rpartition(".")
    found = None
    if module == "kbr.training.encoders":
        found = getattr(import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise KbrError(
            f"the checkpoint's encoder {described['target']} is not one of kbr's own. Pass it: "
            "load(path, encoder=functools.partial(YourEncoder, ...))."
        )
    return partial(found, **described["arguments"])
