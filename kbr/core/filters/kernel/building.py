"""How a filter's parts are built from its settings: features, ridges, engine, operators."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import (
    FeatureMap,
    Features,
    Identity,
    KernelPCA,
    PivotedCholesky,
    as_feature_map,
)
from kbr.core.filters.kernel.choosing.search import (
    ETA_BOUNDS,
    Bounds,
    PerDataSet,
    search_ridge,
)
from kbr.core.filters.kernel.dynamics.known_transition import KnownOperators, TransitionRatio
from kbr.core.filters.kernel.dynamics.lift import Lift
from kbr.core.filters.kernel.engine import ActiveSet, LowRank, Update, beside_unit, compress
from kbr.core.filters.kernel.engines.local import (
    CELLS,
    LEAST,
    MEDIUM,
    Local,
    LocalOperators,
    is_high_rank,
    local_note,
)
from kbr.core.filters.kernel.engines.sensors import (
    SensorOperators,
    SensorUpdate,
    check_sensors,
    sensor_medians,
)
from kbr.core.filters.kernel.operators import (
    dense_operators,
    leave_one_out_score,
    transition_pairs,
)
from kbr.core.filters.kernel.settings import Settings, is_free
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.sequences import Sequences
from kbr.core.kernels import Gaussian, Kernel, Linear, median_distance
from kbr.core.products import has_profile, product_of
from kbr.core.rules import Rule
from kbr.core.units.sensors import Sensors, Set

FULL_RANK = 0.45  # above this share of n, features of x cost more than the active set
ROUGH_RANK = 64  # leading features of full-rank kernels, enough to choose bandwidth and ridge
COMPRESSED_SHARE = 0.6  # compression pays when its pivots are fewer than this share of n
COMPRESSED_LAM = 5e-4  # below this ridge compression loses digits that show
ROUGH_LAM = 1e-6  # below this ridge it loses those by which ridges are told apart
TOLERANCE = 1e-7  # of factors to choose with: that needs fewer digits than filtering
LATENT_RANK = 400  # features of the latents at most, of more than MEDIUM points
SMALL_ETA = 1e-5  # below this ridge what the factor of the latents leaves out shows
CLOSE = 1e-11  # so it is made again, to this tolerance
Medians = tuple[Tensor | None, ...]  # of x, of z and of controls
Observed = Float[Tensor, "*b n dx"]
Latents = Float[Tensor, "*b n dz"]
AnyKernel = Kernel | FeatureMap
Scale = float | Tensor
Tolerance = float | Tensor


def latent_tolerance(eta: PerDataSet) -> PerDataSet:
    """Of the factor of G_Z: what it leaves out is divided by eta, the smaller of both ridges."""
    return (5e-5 * eta).clamp(1e-13, 1e-7)


def observation_tolerance(lam: PerDataSet) -> PerDataSet:
    """Of the factor of G_X: k(x_i, x) of a new x is off by its root, which is divided by lam."""
    return (1e-6 * lam.square()).clamp(1e-13, 1e-9)


@dataclass(frozen=True, eq=False)
class Builder:
    """Builds the parts of a filter with these settings.

    `least_lam` and `least_eta` end the search where less would be lost in rounding. `medians` are
    the distances that bandwidths of x, z and controls are multiples of, where they are known
    already; `scale_u` is the controls' multiple. With `sensors`, that of x is one for each.
    """

    settings: Settings
    least_lam: float = 0.0
    least_eta: float = 0.0
    medians: Medians = (None, None, None)
    scale_u: Scale = 1.0
    sensors: Sensors | None = None

    @property
    def rule(self) -> Rule:
        return self.settings.rule

    def measured(self, data: Sequences) -> "Builder":
        """The same for features of these points at many scales: their medians are found once."""
        sensors, u = self.sensors or data.sensors, controls_of(data)
        median_x = median_distance if sensors is None else partial(sensor_medians, sensors)
        medians = (
            _median(self.rule.kernel_x, data.observed, median_x),
            _median(self.rule.kernel_z, data.z, median_distance),
            None if u is None else median_distance(u),
        )
        return replace(self, medians=medians, sensors=sensors)

    def floored(self, floor: Float[Tensor, "*b"]) -> "Builder":
        """The same with this floor of the ratio; NaN: the rule's own."""
        if bool(floor.isnan().any()):
            return self
        rule = replace(self.rule, floor=floor)  # type: ignore[call-arg]
        return replace(self, settings=replace(self.settings, rule=rule))

    def of_members(self, members: Tensor) -> "Builder":
        """The same for some of the data sets."""
        some = (None if median is None else median[members] for median in self.medians)
        return replace(self, medians=tuple(some))

    def tolerances(self, each: PerDataSet) -> PerDataSet:
        """Each data set's own: with the least of all, each would be as slow as if it had the
        smallest ridge of one and the smallest bandwidth of another.

        The original rule squares an operator, which makes what is left out larger: the least.
        """
        return each if self.rule.SPARSE else each.min().expand_as(each)

    @property
    def eta_bounds(self) -> Bounds:
        return max(ETA_BOUNDS[0], self.least_eta), ETA_BOUNDS[1]

    def latents(self, z: Latents, scale: Scale, tolerance: Tolerance) -> Features:
        """Features of the training latents; of many points, no more than LATENT_RANK."""
        chosen, n = self.latent_map(scale, tolerance), z.shape[-2]
        if isinstance(chosen, PivotedCholesky) and n > MEDIUM and chosen.max_rank is None:
            rank = LATENT_RANK
            chosen = replace(chosen, kernel=chosen.kernel.fit(z), max_rank=rank, among=8 * rank)
        return _fit(chosen, z)

    def latent_map(self, scale: Scale, tolerance: Tolerance) -> FeatureMap:
        return _scaled(self.rule.kernel_z, scale, tolerance, self.medians[1])

    def observation_map(self, scale: Scale, tolerance: Tolerance) -> FeatureMap:
        return _scaled(self.rule.kernel_x, scale, tolerance, self.medians[0])

    def fitted_kernels(
        self, x: Tensor, z: Tensor, scales: tuple[Tensor, Tensor]
    ) -> tuple[Kernel, Kernel]:
        """The kernels in use with their bandwidths; of feature maps, the kernels they stand for."""
        pairs = ((self.rule.kernel_x, scales[0], x), (self.rule.kernel_z, scales[1], z))
        return tuple(_kernel_of(_scaled(k, s, 0.0), p) for k, s, p in pairs)  # type: ignore[return-value]

    def update(
        self, x: Observed, scale: Scale, tolerance: Tolerance, *, lam: float, rough: bool = False
    ) -> Update:
        """The form of the update that suits these observations, or the one asked for.

        `rough` serves tuning: compression, and leading features where the kernel has full rank, may
        then lose what does not change a choice.
        """
        if self.sensors is not None:

            def build(rows: Tensor, some: Set) -> Update:
                return self._of_set(some).update(rows, scale, tolerance, lam=lam, rough=rough)

            return SensorUpdate(self.sensors, x, self._widths(x), build)
        n, engine = x.shape[-2], self.settings.engine
        limit = int(n * FULL_RANK)
        chosen = self.observation_map(scale, tolerance)
        if not isinstance(engine, str):
            return engine.build(chosen, x, lam=lam)
        if isinstance(chosen, PivotedCholesky):
            if engine == "active_set":
                return _active_set(chosen.kernel, x)
            if self.is_local(chosen.kernel, x):
                few = LEAST if rough else None
                return Local(chosen.kernel.fit(x), x.to(torch.float64), few)
            if engine == "auto" and (rough or self.rule.SPARSE):
                # No more columns than tell that there are too many: another form is at hand.
                chosen = replace(chosen, max_rank=limit + 1)
            features = _fit(chosen, x)
            if engine == "auto" and features.train.shape[-1] > limit:
                if rough:
                    return LowRank(_fit(KernelPCA(kernel=chosen.kernel, n_features=ROUGH_RANK), x))
                if self.rule.SPARSE:
                    return _active_set(chosen.kernel, x)
        elif engine in ("active_set", "local"):
            return _active_set(Linear(), chosen.fit(x).train)
        else:
            features = _fit(chosen, x)
        if engine == "low_rank":
            return LowRank(features)
        lam = beside_unit(lam, features.train)
        least = lam if self.rule.SPARSE else lam**0.5  # the other rule's is of a squared operator
        exact = least < ROUGH_LAM if rough else lam < COMPRESSED_LAM
        if engine == "auto" and exact:
            return LowRank(features)
        # psi_i psi_i' is off by the root of the tolerance, which must stay far below lam.
        update = compress(features, tolerance=max(1e-14, (1e-3 if rough else 1e-6) * lam**2))
        pays = update.pivots.shape[-2] < COMPRESSED_SHARE * n
        return update if pays or engine == "compressed" else LowRank(features)

    def _widths(self, x: Observed) -> Float[Tensor, "dx"]:
        """What the columns of sensors are divided by, so that one bandwidth suits all."""
        assert self.sensors is not None
        widths = torch.ones_like(x[0])
        if self.medians[0] is not None:
            for k, columns in enumerate(self.sensors.columns):
                widths[list(columns)] = self.medians[0][k] * self.sensors.scales[k]
        return widths

    def _of_set(self, some: Set) -> "Builder":
        """The builder for the columns of these sensors, divided by their widths."""
        assert self.sensors is not None
        median, settings = self.medians[0], self.settings
        own, kernel = settings.sensor_kernels or {}, self.rule.kernel_x
        kernels = [own.get(self.sensors.names[k], kernel) for k in some]
        parts = [one for one in kernels if has_profile(one)]
        if len(parts) == len(some):
            kernel = product_of(parts, [len(self.sensors.columns[k]) for k in some])
        rule = replace(self.rule, kernel_x=kernel)
        return replace(
            self,
            settings=replace(settings, rule=rule, sensor_kernels=None),
            sensors=None,
            medians=(None if median is None else torch.ones_like(median[0]), *self.medians[1:]),
        )

    def is_local(self, kernel: Kernel, x: Observed) -> bool:
        """Whether the update is taken on few points at a time."""
        if self.sensors is not None:
            every = tuple(range(len(self.sensors.names)))
            alone, order = self._of_set(every), self.sensors.of(every)
            rows = (x / self._widths(x))[self.sensors.present(x).all(-1)]  # with all sensors
            whole = alone.rule.kernel_x
            assert isinstance(whole, Kernel)
            return len(rows) > 0 and alone.is_local(whole, rows[:, order])
        if self.settings.engine != "auto":
            return self.settings.engine == "local"
        return x.shape[-2] > MEDIUM and self.rule.SPARSE and is_high_rank(kernel.fit(x), x)

    def lift(self, phi: Float[Tensor, "*b n p"], data: Sequences, tolerance: float) -> Lift | None:
        """Features of latents joined with the controls that move them; None without controls."""
        u = controls_of(data)
        if u is None:
            return None
        median = median_distance(u) if self.medians[2] is None else self.medians[2]
        before = transition_pairs(data.lengths)[0].to(phi.device)
        kernel = Gaussian(bandwidth=self.scale_u * median)
        return Lift.of(kernel, phi.index_select(-2, before), u, tolerance=tolerance)

    def ridges(
        self, phi: Float[Tensor, "*b n p"], lengths: Sequence[int], lift: Lift | None
    ) -> dict[str, Any]:
        """eta (leave-one-out unless given) and lam_transition (eta unless given)."""
        ones, settings = phi.new_ones(phi.shape[:-2]), self.settings
        if settings.given_eta is not None:
            eta = settings.given_eta * ones
        else:
            pairs = (rows.to(phi.device) for rows in transition_pairs(lengths))
            before, after = (phi.index_select(-2, rows) for rows in pairs)
            score = leave_one_out_score(phi, before if lift is None else lift.rows, after)
            if settings.etas is None:
                eta = search_ridge(score, ones, self.eta_bounds)
            else:
                scores = torch.stack([score(value) for value in settings.etas])
                eta = phi.new_tensor(tuple(settings.etas))[scores.argmin(0)]
        lam = settings.lam_transition
        return {"eta": eta, "lam_transition": eta if lam is None else lam * ones}

    def ridged_latents(
        self, data: Sequences, scale: Scale
    ) -> tuple[Features, Lift | None, dict[str, Any]]:
        """Features of the latents close enough to choose with, their lift, and both ridges."""

        def made(tolerance: Tensor) -> tuple[Features, Lift | None, dict[str, Any]]:
            latents = self.latents(data.z, scale, tolerance)
            lift = self.lift(latents.train, data, 10 * float(tolerance.min()))
            return latents, lift, self.ridges(latents.train, data.lengths, lift)

        rough = data.z.new_full(data.z.shape[:-2], TOLERANCE)
        parts = made(rough)
        small = parts[2]["eta"] < SMALL_ETA
        if not bool(small.any()) or data.z.shape[-2] > MEDIUM:
            return parts
        return made(self.tolerances(torch.where(small, CLOSE, rough)))

    def operators(
        self, update: Update, latents: Features, z: Latents, lengths: Sequence[int], **parts: Any
    ) -> Operators:
        """Everything the filter needs before it sees an observation; ridges and lift by name."""
        if isinstance(self.rule.ratio, TransitionRatio):
            return KnownOperators.of(self.rule, update, z)
        notes, n, rank = [], z.shape[-2], latents.train.shape[-1]
        if n > MEDIUM and rank == LATENT_RANK:
            notes.append(
                f"features of z cut at {rank}; pass kernel_z=PivotedCholesky(max_rank=...)"
            )
        if isinstance(update, Local):
            notes.append(local_note(n))
        if isinstance(update, SensorUpdate):
            notes += check_sensors(update.sensors, update.x)
        operators = dense_operators(
            self.rule, update, latents, z, lengths, notes=tuple(notes), **parts
        )
        if isinstance(update, SensorUpdate):
            return SensorOperators(**vars(operators))
        cells = isinstance(update, Local) and z.ndim == 2 and n > CELLS
        return LocalOperators.of(operators, latents) if cells else operators


def _median(
    kernel: AnyKernel, points: Tensor, measure: Callable[[Tensor], Tensor]
) -> Tensor | None:
    """That of the points, for kernels whose bandwidth is a multiple of it."""
    by_median = is_free(kernel) and type(kernel).fit is Kernel.fit  # as kernels have it
    return measure(points) if by_median else None


def controls_of(data: Sequences) -> Float[Tensor, "*b k du"] | None:
    """Of every step inside a sequence, in double precision; None where there are none."""
    if not data.controls:
        return None
    _, after = transition_pairs(data.lengths)
    return data.x[..., -data.controls :].index_select(-2, after.to(data.x.device)).double()


def _scaled(
    kernel: AnyKernel, scale: Scale, tolerance: Tolerance, median: Tensor | None = None
) -> FeatureMap:
    """The kernel's feature map at a bandwidth scale; finished maps and bandwidths stay."""
    if not isinstance(kernel, Kernel):
        return kernel
    if is_free(kernel):
        scale = kernel.scale * scale
        kernel = replace(kernel, scale=scale, bandwidth=None if median is None else scale * median)
    chosen = as_feature_map(kernel)
    return replace(chosen, tolerance=tolerance) if isinstance(chosen, PivotedCholesky) else chosen


def _kernel_of(chosen: FeatureMap, points: Tensor) -> Kernel:
    kernel = Linear() if isinstance(chosen, Identity) else getattr(chosen, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise KbrError(
            f"{type(chosen).__name__} stands for no kernel, so its filter cannot be compressed. "
            "Use a kernel, or one of kbr's feature maps."
        )
    return kernel.fit(points.to(torch.float64))


def _fit(chosen: FeatureMap, points: Tensor) -> Features:
    """Features in float64, contiguous for the many products to come."""
    features = chosen.fit(points)
    return replace(features, train=features.train.to(torch.float64).contiguous())


def _active_set(kernel: Kernel, x: Tensor) -> ActiveSet:
    fitted = kernel.fit(x)
    return ActiveSet(fitted, x, fitted(x, x))
