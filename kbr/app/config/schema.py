"""What every key of every config file may hold.

OPTIONS: a class for each config file whose keys kbr reads by name (`data/rotation`, `trainer/cpu`);
         all must be there but those with a default. `data/*` is for files of the user's own.
TARGETS: a class for each `_target_` that config files name, with the keys that are its arguments.
Keys of other targets, those of kbr.app.models or a user's own class, are checked against its
signature instead; a value `${data.omega}` is checked as `data.omega`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from kbr.app.config.values import Built, Described, Length, Node, Range

Count = Annotated[int, Range(1, most=10**9)]
Trailing = Annotated[int, Range(2, most=10**6)]
Seed = Annotated[int, Range(0, most=2**32 - 1)]
Pixels = Annotated[int, Range(1, most=10_000)]
Auto = Literal["auto"]
Positive = Annotated[float, Range(0, open="low")]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1, open="both")]
Dropout = Annotated[float, Range(0, 1, open="high")]
Steps = Annotated[int, Range(0, most=10**9)]
Grid = Annotated[Sequence[Positive], Length()]
Part = Annotated[Any, Node]  # what is built from a part of the config
EngineName = Literal["auto", "low_rank", "compressed", "active_set", "local"]
Engine = Annotated[EngineName | Built, Described("auto, low_rank, compressed, active_set or local")]
Name = Annotated[str, Length(), Described("a name")]
Column = Annotated[str, Length(), Described("the name of a column")]
Columns = Annotated[
    str | list[str | int | float], Length(), Described("a column, or a list of columns")
]
Fusion = Literal["auto", "product", "sequence"]
SensorKernels = Annotated[
    dict[str, Built],
    Length(),
    Described("a mapping {sensor: {_target_: kbr.Laplace}, ...} of a kernel each"),
]
Parted = Annotated[
    Literal["each"] | dict[str, Columns],
    Length(),
    Described("each, or a mapping {sensor: [columns], ...}"),
]
Path = Annotated[str, Length(), Described("the path of one file or folder")]
Paths = Annotated[
    str | list[Path], Length(), Described("a file, a folder, a pattern (*), or a list of them")
]
Step = Positive | Annotated[str, Length(), Described("a step like 30s")]
Folder = Annotated[str, Length(), Described("the path of one folder")]
Folders = Annotated[
    str | list[Folder], Length(), Described("the path of one folder, or a list of paths")
]
Trust = Annotated[str | list[Name], Described("a list of modules, [] for none")]


# ---------------------------------------------------------------------------- train.py, evaluate.py


@dataclass
class Train:
    seed: Seed
    trials: Annotated[int, Range(1, most=10**6)]
    quick: bool
    resume: Folder | None
    trust: Trust
    optimized_metric: Name | None
    figure: Node | None
    data: Node
    model: Node
    encoder: Node
    trainer: Node
    logger: Node
    callbacks: dict[str, Node] | None = None  # by names of the user's own


@dataclass
class Figure:
    name: Name
    x: Name | None
    label: str
    reference: Name
    models: Annotated[list[Name], Length()]
    trials: dict[str, Count] | None = None
    quick: dict[str, Any] | None = None
    cost: dict[str, Positive] | None = None


@dataclass
class Evaluate:
    run: Folder | None
    report: Folders | None
    compare: Folders | None
    out: Path | None
    device: Literal["cpu", "cuda"]
    trust: Trust
    data: Node


@dataclass
class EvaluateData:
    seed: Seed | None
    path: Paths | None
    decimal: Literal["point", "comma"] | None
    rename: dict[str, str] | None
    sequence: Column | None
    time: Column | None
    file: Column | None
    unpack: Folder | None
    max_gb: Positive | None


# --------------------------------------------------------------------------------------------- data


@dataclass
class Task:
    """A data set of the user's own: with a `_target_`, or a `problem` that refers to its keys."""

    name: Name
    problem: Node | None = None


@dataclass
class Simulated:
    name: Name
    n_train: Count
    n_test: Count


@dataclass
class Gaussian(Simulated):
    dim: Annotated[int, Range(1, most=10_000)]
    n_prior: Count


@dataclass
class Filtering(Simulated):
    sigma_x: NotNegative
    sigma_z: NotNegative


@dataclass
class Ring(Filtering):
    omega: float
    beta: float
    frequency: Annotated[int, Range(-1000, 1000)]


@dataclass
class DSprites(Filtering):
    source: Literal["rendered", "file"]
    path: Path | None
    pixel_noise: NotNegative
    shape: Annotated[int, Range(0, 2)]
    scale: Annotated[int, Range(0, 5)]
    orientation: Annotated[int, Range(0, 39)]


@dataclass
class Heading(Filtering):
    frames: Path | None
    maze_seed: Annotated[int, Range(0, most=2**31 - 1)]
    n_frames: Annotated[int, Range(2, most=10**6)]
    cache: Folder
    height: Pixels
    width: Pixels
    pixel_noise: NotNegative
    omega: float


@dataclass
class Several(Simulated):
    length: Count
    test_length: Count
    sigma_z: NotNegative
    dt: Positive


@dataclass
class Lorenz(Several):
    p: Annotated[float, Range(0, 1)]


@dataclass
class Pendulum(Several):
    friction: NotNegative
    clean: Steps


@dataclass
class OwnData:
    name: Name
    path: Paths | None
    x: Columns | None
    z: Columns | None
    u: Columns | None
    sequence: Column | None
    time: Column | None
    max_gap: Positive | None
    resample: Step | None
    added: Annotated[str | list[str], Described("a list of columns, [] for none")]
    decimal: Literal["point", "comma"]
    rename: dict[str, str] | None
    circular: Annotated[str | list[str], Described("a list of columns, [] for none")]
    sensors: Parted | None
    trend: Trailing | None
    angle_unit: Literal["degrees", "radians"]
    units: dict[str, str] | None
    split: Literal["auto", "time", "sequence"]
    test_share: Share
    n_train: Count | None
    n_test: Count | None
    file: Column
    resize: Annotated[list[Pixels], Length(2, 2), Described("[height, width] in pixels")] | None
    channels: Literal["auto", "first", "last"]
    unpack: Folder | None
    max_gb: Positive


@dataclass
class Real:
    name: Name
    root: Folder | None
    rows: Count | None
    max_gap: Positive | None
    n_train: Count | None
    n_test: Count | None


@dataclass
class Canteen(Real):
    missing: bool
    resample: Positive | None


@dataclass
class Battery(Real):
    step: Positive | None
    controls: bool


@dataclass
class Turbofan(Real):
    truth: Literal["last", "all"]
    trend: Trailing | None


@dataclass
class Plaza(Real):
    site: Literal["Plaza1", "Plaza2"]
    hold: NotNegative
    sensors: bool
    resample: Positive | None
    controls: bool


# ------------------------------------------------------------------------------------------- models


@dataclass
class OriginalRule:
    lam: Positive | None


@dataclass
class Rule(OriginalRule):
    normalize: bool


@dataclass
class ParticleFilter:
    n_particles: Count
    resample_threshold: Annotated[float, Range(0, 1)]
    seed: Seed


@dataclass
class MovingFilter:
    n_particles: Count
    sensing: Literal["auto", "shows", "tells"]
    temper: Annotated[float, Range(0, 1, open="low")] | Auto
    inflate: Positive | Auto
    outliers: Annotated[float, Range(0, 0.5, open="low")] | Auto
    lasting: Annotated[float, Range(0, 1)] | Auto
    jitter: Annotated[float, Range(0, 10)] | Auto
    restart: Annotated[float, Range(0, 1, open="high")]
    velocity: bool | Auto
    standardize: bool
    seed: Seed


@dataclass
class TrainedFilter:
    encoder: Node
    epochs: Count
    lr: Positive
    weight_decay: NotNegative
    noise: NotNegative
    dropout: Dropout | None
    val_every: Count
    slack: NotNegative
    patience: Count
    log_every: Count
    checkpoint_every: Count


@dataclass
class LearnedFilter(TrainedFilter):
    lam: Positive
    targets: Literal["fourier", "cholesky"]
    n_fourier: Annotated[int, Range(2, most=10**6)]
    scale: Positive
    lams: Grid | None
    scales: Grid | None
    etas: Grid | None
    coarse_scales: Grid
    chunk: Count


Layers = Annotated[int, Range(1, most=100)]


@dataclass
class ReadoutFilter(TrainedFilter):
    lam: Positive
    batch: Count | None
    chunk: Count
    history: Count | Auto
    velocity: bool | Auto
    engine: EngineName


@dataclass
class MovingReadoutFilter(TrainedFilter):
    lam: Positive
    batch: Count | None
    chunk: Count
    n_particles: Count
    velocity: bool | Auto


@dataclass
class RecurrentFilter(TrainedFilter):
    hidden: Annotated[int, Range(1, most=10**5)]
    gaps: Dropout
    loss: Literal["mse", "likelihood"]
    batch: Count | None


@dataclass
class LSTMFilter(RecurrentFilter):
    noise: NotNegative | None  # type: ignore[assignment]
    window: Annotated[int, Range(1, most=10**6)]


@dataclass
class StateFilter(RecurrentFilter):
    chunk: Annotated[int, Range(1, most=10**6)]


@dataclass
class LRUFilter(StateFilter):
    layers: Layers


@dataclass
class TransformerFilter(LSTMFilter):
    noise: NotNegative
    layers: Layers
    heads: Layers


@dataclass
class RKNFilter(StateFilter):
    basis: Annotated[int, Range(1, most=1000)]
    band: Annotated[int, Range(0, most=10**5)]


@dataclass
class Frames:
    estimator: Node
    grid: Annotated[dict[str, list[Any]], Described("a mapping {parameter: [values], ...}")]
    most: Count | None


@dataclass
class AnyModel:
    """Of the user's own: its other keys are arguments of its class."""

    name: Name = "of its class"


# ------------------------------------------------------------------------- encoder, trainer, logger

Units = Annotated[int, Range(1, most=10**5)]  # of a layer


@dataclass
class Encoder:
    n_features: Units
    dropout: Dropout


@dataclass
class CNN(Encoder):
    channels: Units
    n_maps: Units
    hidden: Units


@dataclass
class MLP(Encoder):
    hidden: list[Units]


@dataclass
class SensorEncoder:
    n_features: Units
    hidden: Units
    dropout: Dropout | None
    frames: Node
    encoders: (
        Annotated[
            dict[str, Built],
            Length(),
            Described(
                "a mapping {sensor: {_target_: ..., _partial_: true}, ...} of an encoder each"
            ),
        ]
        | None
    )


@dataclass
class Trainer:
    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Annotated[int, Range(1, most=10**5)] | Literal["auto"]
    precision: Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]
    threads: Annotated[int, Range(1, most=1024)]
    strategy: Literal["auto", "ddp"] = "auto"


@dataclass
class ParallelTrainer(Trainer):
    timeout: Annotated[int, Range(1, most=10**6)] = 600


@dataclass
class TensorBoardLogger:
    name: Literal["tensorboard"]
    version: str | int


@dataclass
class CSVLogger:
    name: Literal["csv"]
    version: str | int


@dataclass
class WandbLogger:
    project: Name
    offline: bool
    reinit: Literal["create_new"] = "create_new"


@dataclass
class MLFlowLogger:
    experiment_name: Name
    tracking_uri: Annotated[str, Length(), Described("the address of a server")] | None
    save_dir: Folder


@dataclass
class Target:
    """Hydra's own keys of anything that is built."""

    _target_: Annotated[str, Length(), Described("the name of a class, like kbr.Laplace")]
    _partial_: bool
    _recursive_: bool
    _convert_: Literal["none", "partial", "object", "all"]
    _args_: list[Any]


OPTIONS: dict[str, type] = {
    "train": Train,
    "train/figure": Figure,
    "evaluate": Evaluate,
    "evaluate/data": EvaluateData,
    "data/*": Task,
    "data/gaussian": Gaussian,
    "data/rotation": Ring,
    "data/oscillatory": Ring,
    "data/dsprites": DSprites,
    "data/dmlab": Heading,
    "data/lorenz_images": Lorenz,
    "data/pendulum_images": Pendulum,
    "data/recording": OwnData,
    "data/rtt_canteen": Canteen,
    "data/battery": Battery,
    "data/turbofan": Turbofan,
    "data/uwb_plaza": Plaza,
    "data/uwb_plaza2": Plaza,
    "model/*": AnyModel,
    "trainer/*": ParallelTrainer,
    "trainer/auto": Trainer,
    "trainer/cpu": Trainer,
    "trainer/gpu": Trainer,
    "trainer/ddp": ParallelTrainer,
    "trainer/ddp_cpu": ParallelTrainer,
}
TARGETS: dict[str, type] = {
    "kbr.app.tasks.simulated.gaussian": Gaussian,
    "kbr.app.tasks.simulated.rotation": Ring,
    "kbr.app.tasks.simulated.oscillatory": Ring,
    "kbr.app.tasks.simulated.dsprites": DSprites,
    "kbr.app.tasks.simulated.dmlab": Heading,
    "kbr.app.tasks.simulated.lorenz_images": Lorenz,
    "kbr.app.tasks.simulated.pendulum_images": Pendulum,
    "kbr.app.recordings.task.recording": OwnData,
    "kbr.app.real.tasks.rtt_canteen": Canteen,
    "kbr.app.real.tasks.battery": Battery,
    "kbr.app.real.tasks.turbofan": Turbofan,
    "kbr.app.real.tasks.uwb_plaza": Plaza,
    "kbr.app.baselines.frames.TunedFrames": Frames,
    "kbr.ImportanceWeightedRule": Rule,
    "kbr.OriginalRule": OriginalRule,
    "kbr.ParticleFilter": ParticleFilter,
    "kbr.core.filters.moving.filter.MovingFilter": MovingFilter,
    "kbr.training.filters.learned.LearnedFilter": LearnedFilter,
    "kbr.training.filters.paired.PairedFilter": LearnedFilter,
    "kbr.training.filters.readout.ReadoutFilter": ReadoutFilter,
    "kbr.training.filters.moving_readout.MovingReadoutFilter": MovingReadoutFilter,
    "kbr.training.filters.lstm.LSTMFilter": LSTMFilter,
    "kbr.training.filters.gru.GRUFilter": StateFilter,
    "kbr.training.filters.lru.LRUFilter": LRUFilter,
    "kbr.training.filters.rkn.RKNFilter": RKNFilter,
    "kbr.training.filters.transformer.TransformerFilter": TransformerFilter,
    "kbr.training.filters.kalman_nn.KalmanNNFilter": StateFilter,
    "kbr.training.encoders.SoftArgmaxCNN": CNN,
    "kbr.training.encoders.MLP": MLP,
    "kbr.training.encoders.ResNet": Encoder,
    "kbr.training.sensor_encoder.SensorEncoder": SensorEncoder,
    "kbr.training.curves.Curves": TensorBoardLogger,
    "kbr.training.loggers.KeptCSVLogger": CSVLogger,
    "lightning.pytorch.loggers.WandbLogger": WandbLogger,
    "lightning.pytorch.loggers.MLFlowLogger": MLFlowLogger,
}
