"""What the trained filters share: training by Lightning, resuming, checkpoints.

A subclass says which module is trained, what is fitted after training, and how it filters.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError, Preempted
from kbr.core.filters.base import BaseFilter
from kbr.core.filters.kernel.choosing.search import Edge
from kbr.core.filters.kernel.choosing.validation import validation_start
from kbr.core.inputs import ArrayLike, as_tensor, check_positive, check_sizes
from kbr.core.io import checkpoint
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import tensor_bytes
from kbr.core.units.sensors import Sensors, Wanted
from kbr.core.units.units import Units
from kbr.training.callbacks.bar import EpochBar
from kbr.training.callbacks.keeping import KeepBest
from kbr.training.data import SequenceData, TrainingRows, training_rows
from kbr.training.encoders import Encoder, SoftArgmaxCNN, describe_encoder, known_encoder
from kbr.training.lightning_run import train
from kbr.training.modules.base import SequenceModule
from kbr.training.resuming import LAST, Training, last_checkpoint, record_of, training_in
from kbr.training.sensor_encoder import routed

ENCODE_ROWS = 512  # frames encoded at once when filtering
BEYOND = 4.0  # times the mean square of the largest training observation: larger is unlike any


@dataclass(kw_only=True, eq=False, repr=False)
class TrainedFilter(BaseFilter):
    """A filter whose network is trained; `encoder(shape=...)` builds the network.

    Where x has frames beside columns, that is the encoder of the frames: see `SensorEncoder`.

    epochs         full-batch steps at most;
    noise          augmentation, in standard deviations of the observations; None, where a kind of
                   filter has `noises`: that of frames, or of vectors;
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
    noise: float | None = 1.0
    dropout: float | None = None
    val_every: int = 10
    slack: float = 0.25
    patience: int = 6
    log_every: int = 10
    checkpoint_every: int = 25

    kind: ClassVar[str]
    network: ClassVar[type[SequenceModule]]  # what is trained
    not_of_network: ClassVar[Sequence[str]] = ("val_every", "slack", "patience", "checkpoint_every")
    takes_files: ClassVar[bool] = True
    takes_sensors: ClassVar[bool] = True
    noises: ClassVar[tuple[float, float] | None] = None  # of frames, of vectors
    in_blocks: ClassVar[bool] = False  # whether observations may stay in their file

    def __post_init__(self) -> None:
        self.val_mse = float("nan")
        self.chosen: dict[str, float] = {}
        self.edges: tuple[Edge, ...] = ()  # what the last fit chose at an end of what it may
        self.n_epochs = 0
        self._module: SequenceModule | None = None
        self._shape: tuple[int, ...] = ()  # of one observation, in inner coordinates
        self._units: Units | None = None
        self._largest = math.inf  # of the mean squares of scaled training observations
        self._dz, self._controls = 0, 0
        self._record: dict[str, Any] = {}  # what tells this training from others
        self._lengths: list[int] = []  # of the training sequences
        counts = ("epochs", "val_every", "patience", "log_every", "checkpoint_every")
        check_sizes(**{name: getattr(self, name) for name in counts})
        check_positive(float(self.lr), name="lr")
        chosen = ("noise",) if self.noise is None and self.noises is not None else ()
        for name in ("noise", "weight_decay", "slack"):
            value = getattr(self, name)
            if name not in chosen and (value is None or not value >= 0):
                raise KbrError(f"{name} must be at least 0; got {getattr(self, name)}. Set {name}.")

    def __repr__(self) -> str:
        state = f"val_mse={self.val_mse:.4g}" if self._module is not None else "not fitted"
        return f"{type(self).__name__}({state})"

    @property
    def is_fitted(self) -> bool:
        return self._module is not None

    def _facts(self) -> dict[str, Any]:
        module = self._get()
        tensors = module.state_dict().values()
        count = sum(value.numel() for value in module.parameters())
        return {
            "method": f"{type(module).__name__} with {type(module.encoder).__name__}",
            "n": sum(self._lengths) or None,
            "sequences": len(self._lengths) or None,
            "observation": self.shape,
            "val_mse": self.val_mse,
            "memory": tensor_bytes(*tensors),
            "details": {
                "network": f"{count:,} weights",
                "training": f"kept epoch {self.n_epochs} of {self.epochs}",
            },
        }

    def held_out_from(self, lengths: Sequence[int]) -> int:
        """First of the training rows that the network does not see: its validation block."""
        return validation_start(sum(lengths))

    @abstractmethod
    def finish(self, module: SequenceModule, x: Any, z: Tensor, *u: Tensor) -> None:
        """What is fitted once the network is trained, on all training steps; u where there is."""

    @abstractmethod
    def fitted_state(self) -> dict[str, Any]:
        """Plain values and tensors from which `restore` rebuilds what `finish` made."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None: ...

    def fit(
        self,
        x_train: Any,
        z_train: Any,
        *,
        u: Any = None,
        time: Any = None,
        time_steps: str = "equal",
        circular: Sequence[str] | str = (),
        angle_unit: str = "degrees",
        sensors: Wanted = None,
        units: Units | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        trainer: dict[str, Any] | None = None,
        resume: str | Path | None = None,
        progress: bool = False,
    ) -> Self:
        """Train on x [T, ...] and z [T, dz], or on lists of sequences; leaves checkpoints and
        TensorBoard logs in `folder`, or nothing on disk without one.

        `u`, `time`, `time_steps`, `circular`, `angle_unit` and `units` as for
        `KernelBayesFilter.fit`. `trainer` holds arguments of `lightning.Trainer`. `resume` is the
        run folder to continue; a run stopped before its first checkpoint starts anew, which comes
        to the same. With `progress`, one bar counts the epochs; Lightning's own
        bars are shown by `trainer={"enable_progress_bar": True}`.
        """
        began = perf_counter()
        trainer = {"enable_progress_bar": False, **(trainer or {})}
        if progress:
            trainer["callbacks"] = [*trainer.get("callbacks", ()), EpochBar()]
            trainer["enable_progress_bar"] = False
        self._check_taken(x_train, u, time_steps, sensors, units)
        about = {"time": time, "circular": circular, "angle_unit": angle_unit, "units": units}
        about["sensors"] = sensors
        if self.takes_controls:
            about |= {"u": u, "time_steps": time_steps}
        rows = training_rows(x_train, z_train, whole=not self.in_blocks, **about)
        if folder is not None:
            self._fit(rows, seed, Path(folder), trainer, resume)
            self.seconds = perf_counter() - began
            return self
        with TemporaryDirectory() as passing:
            try:
                self._fit(rows, seed, Path(passing), {"logger": False, **trainer}, resume)
                self.seconds = perf_counter() - began
                return self
            except Preempted as stopped:
                lost = "training was stopped, and nothing is kept without folder=..."
                raise Preempted(lost, number=stopped.number) from None

    def _fit(
        self,
        rows: TrainingRows,
        seed: int,
        folder: Path,
        trainer: dict[str, Any],
        resume: str | Path | None,
    ) -> Self:
        x, z, self._lengths, self._units = rows.x, rows.z, rows.lengths, rows.units
        self._controls = sum(part.shape[-1] for part in rows.u)
        cut, u = self.held_out_from(self._lengths), rows.u[0] if rows.u else None
        data = SequenceData(x, z, self._lengths, u=u, cut=cut)
        self._record = record_of(self.kind, self.hyper_parameters(), rows, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # networks draw their first weights from the global generator
            module = self._build(rows.shape, z.shape[-1], seed)
        callbacks = list(trainer.get("callbacks", ()))
        keep = next((one for one in callbacks if isinstance(one, KeepBest)), None) or KeepBest()
        keep.path, keep.record = folder / LAST, self._record
        keep.patience, keep.slack, keep.every = self.patience, self.slack, self.checkpoint_every
        keep.path.parent.mkdir(parents=True, exist_ok=True)
        start = None if resume is None else last_checkpoint(Path(resume), self._record)
        settings = {"check_val_every_n_epoch": min(self.val_every, self.epochs), **trainer}
        first = train(module, data, keep, folder=folder, arguments=settings, start=start)
        module.load_state_dict(keep.weights)
        # In float64 a frame has the same features alone and among others, to the last digits.
        module.to(device="cpu", dtype=torch.float64).eval()
        self._module, self._shape, self._dz = module, rows.shape, z.shape[-1]
        self.n_epochs, self.val_mse = keep.epoch, keep.score
        parts = (p.read() for p in x.parts()) if isinstance(x, FileRows) else torch.split(x, 1000)
        self._largest = max(float(self._sizes_of(part).max()) for part in parts)
        self.finish(module, x, z, *(part.double() for part in rows.u))
        if first:
            self.save(folder / "checkpoints" / "best.ckpt")
        return self

    def save(self, path: str | Path) -> None:
        """Everything needed to filter, as tensors and plain values."""
        checkpoint.save(Path(path), self._content())

    def _content(self) -> dict[str, Any]:
        module = self._get()
        return {
            "kind": self.kind,
            "version": checkpoint.VERSION,
            "hyper_parameters": self.hyper_parameters(),
            **{key: self._record[key] for key in ("seed", "data")},
            "shape": list(self._shape),
            "dz": self._dz,
            "controls": self._controls,
            "val_mse": self.val_mse,
            "n_epochs": self.n_epochs,
            "chosen": self.chosen,
            "network": {name: _narrow(value) for name, value in module.state_dict().items()},
            "units": self.units.record(),
            "largest": self._largest,
            "fitted": self.fitted_state(),
        }

    @classmethod
    def load(
        cls, path: str | Path, *, encoder: Encoder | None = None, units: Units | None = None
    ) -> Self:
        """A fitted filter from best.ckpt; `encoder` is needed if its class is not part of kbr.

        `units` are for files from before filters kept theirs.
        """
        content = checkpoint.load(path, kind=cls.kind)
        if "fitted" not in content:
            raise KbrError(
                f"{path} is a checkpoint from the middle of training; it holds no filter yet. Load "
                "best.ckpt, or finish the run first (resume=<run folder>)."
            )
        with checkpoint.restoring(path):
            hyper = content["hyper_parameters"]
            filt = cls(**{**hyper, "encoder": encoder or known_encoder(hyper["encoder"])})
            filt._take(content, path, units)
            return filt

    def _take(self, content: dict[str, Any], path: str | Path, units: Units | None = None) -> None:
        """What `_content` holds of a fitted filter; `path` is named in errors."""
        shape, dz = tuple(content["shape"]), content["dz"]
        self._controls = int(content.get("controls", 0))
        self._record = {key: content[key] for key in ("seed", "data")}
        stored = content.get("units")
        self._units = units if stored is None else Units.from_record(stored)
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced just below
            module = self._build(shape, dz, content["seed"])
        try:
            module.load_state_dict(content["network"])
        except RuntimeError as error:
            raise KbrError(
                f"the network in {path} does not fit the encoder it names. Pass the encoder it "
                f"was trained with. ({' '.join(str(error).split())})"
            ) from error
        if not all(bool(value.isfinite().all()) for value in module.state_dict().values()):
            raise KbrError(f"the weights in {path} are not all finite numbers. Train again.")
        self._module, self._shape, self._dz = module.double().eval(), shape, dz
        self.val_mse, self.n_epochs = content["val_mse"], content["n_epochs"]
        self.chosen = content["chosen"]
        self._largest = float(content.get("largest", math.inf))
        self.restore(content["fitted"])

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: settings and, once fitted, what a file would hold."""
        settings = {"settings": self.get_params(deep=False)}
        if not self.is_fitted:
            return settings
        learned = {"edges": self.edges, "lengths": self._lengths}
        return {**settings, **learned, "content": self._content()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["settings"])
        if "content" in state:
            self._lengths = state["lengths"]
            self._take(state["content"], "the pickle")
            self.edges = state["edges"]

    @property
    def units(self) -> Units:
        if self._units is None:  # a file from before filters knew their units
            return Units.none(self._get().x_mean)
        return self._units

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation, as the user passes it."""
        more = sum(self.units.x.circular) + self._flags
        return (self._shape[0] - more,) if more else self._shape

    @property
    def _flags(self) -> int:
        """How many numbers at the end of what the network sees say which sensors are there."""
        return 0 if self.known_sensors is None else len(self.known_sensors.names)

    @property
    def known_sensors(self) -> Sensors | None:
        """Those of the training data; None where there are none, and before `fit`."""
        return None if self._units is None else self._units.sensors

    def _seen(self, x: Tensor) -> Tensor:
        """Inner observations [... dx] as the network sees them; NaN where no sensor is there."""
        flags = self._flags
        if not flags or x.shape[-1] != self._shape[0] - flags:
            return x
        assert self.known_sensors is not None
        rows = self.known_sensors.filled(x)
        return torch.where(rows[..., -flags:].any(-1, keepdim=True), rows, torch.nan)

    def to(self, device: str | torch.device) -> Self:
        """Move the network; results are on the CPU."""
        if torch.device(device).type == "mps":
            raise KbrError("MPS devices have no float64, which filters need. Use cpu or cuda.")
        self._get().to(device)
        return self

    @torch.no_grad()
    def encode(
        self, x: Tensor | FileRows
    ) -> tuple[Float[Tensor, "s t d"], Bool[Tensor, "s t"], tuple[int, ...]]:
        """Features of inner x [*s T ...] on the CPU, which frames are usable, and *s.

        Not usable are frames with a NaN, and those far larger than any of training.
        """
        module = self._get()
        if isinstance(x, FileRows):
            blocks = [self.encode(part.read(np.float64))[:2] for part in x.parts(ENCODE_ROWS)]
            psi, seen = (torch.cat(parts, 1) for parts in zip(*blocks, strict=True))
            return psi, seen, ()
        tensor = self._seen(x.to(torch.float64))
        lead = tensor.shape[: tensor.ndim - len(self._shape)]
        if not lead or tuple(tensor.shape[len(lead) :]) != self._shape:
            raise KbrError(
                f"observations x must have shape {['...', 'T', *self.shape]}, as in training; got "
                f"{list(tensor.shape)}."
            )
        rows = tensor.reshape(-1, *self._shape)
        seen = rows.flatten(1).isfinite().all(1)
        seen = seen & (self._sizes_of(rows.nan_to_num(0.0, 0.0, 0.0)) <= BEYOND * self._largest)
        kept = seen.reshape(-1, *(1,) * len(self._shape))
        rows = torch.where(kept, rows, torch.zeros_like(rows))
        module.eval()
        device = module.x_mean.device
        psi = torch.cat(
            [module.encode(part.to(device)).cpu() for part in torch.split(rows, ENCODE_ROWS)]
        )
        steps = lead[-1]
        return psi.reshape(-1, steps, psi.shape[-1]), seen.reshape(-1, steps), tuple(lead[:-1])

    def _one_row(self, x: Tensor) -> Tensor:
        """One observation as a sequence of length one."""
        x = self._seen(x)
        if tuple(x.shape) != self._shape:
            raise KbrError(
                f"a step takes one observation x of shape {list(self.shape)}; got {list(x.shape)}. "
                "For whole sequences use filter(x)."
            )
        return x.unsqueeze(0)

    def _sizes_of(self, rows: Tensor) -> Float[Tensor, "b"]:
        """Mean squares of observations, scaled as the network sees them."""
        module = self._get()
        scaled = (rows - module.x_mean.to(rows)) / module.x_scale.to(rows)
        return scaled.flatten(1).square().mean(1)

    def gaze(self, x: ArrayLike) -> tuple[Tensor, Tensor] | None:
        """See `SequenceModule.gaze`."""
        module = self._get()
        return module.gaze(self.units.x.apply(as_tensor(x, name="x")).to(module.x_mean))

    def _build(self, shape: tuple[int, ...], dz: int, seed: int) -> SequenceModule:
        names = (one.name for one in fields(self) if one.name not in self.not_of_network)
        settings = {name: getattr(self, name) for name in names}
        settings["encoder"] = routed(self.encoder, self.known_sensors)
        if self.noise is None and self.noises is not None:
            settings["noise"] = self.noises[len(shape) == 1]
        if self.takes_controls:
            settings["controls"] = self._controls
        if self._flags:
            settings["flags"] = self._flags
        return self.network(**settings, shape=shape, dz=dz, seed=seed)

    def hyper_parameters(self) -> dict[str, Any]:
        """The constructor's arguments as plain values; the encoder as its class and arguments."""
        settings = {f.name: checkpoint.plain(getattr(self, f.name)) for f in fields(self)}
        return {**settings, "encoder": describe_encoder(self.encoder)}

    def training_in(
        self,
        run: Path,
        x_train: Any,
        z_train: Any,
        seed: int,
        *,
        u: Any = None,
        units: Units | None = None,
    ) -> Training:
        """How far training of this very run has come in `run`: none, unfinished or finished."""
        if not (run / LAST).is_file():
            return "none"
        rows = training_rows(x_train, z_train, whole=not self.in_blocks, u=u, units=units)
        return training_in(run, record_of(self.kind, self.hyper_parameters(), rows, seed))

    def _get(self) -> SequenceModule:
        if self._module is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train, ...) first.")
        return self._module


def _narrow(value: Tensor) -> Tensor:
    """Weights as they were trained, in float32."""
    return value.cpu().float() if value.is_floating_point() else value.cpu()
