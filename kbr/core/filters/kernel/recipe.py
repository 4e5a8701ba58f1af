"""How a filter's parts are made from its hyper-parameters: features, ridges, engine, operators."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from kbr.core.filters.kernel.engine import ActiveSet, LowRank, Update, compress
from kbr.core.filters.kernel.known_transition import KnownOperators, TransitionRatio
from kbr.core.filters.kernel.operators import dense_operators
from kbr.core.filters.kernel.search import ETA_BOUNDS, START, Bounds, Space, search_ridge
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.transition import leave_one_out_score, transition_pairs
from kbr.core.inputs import check_positive
from kbr.core.kernels import Kernel, Linear, median_distance
from kbr.core.ratios import KuLSIF
from kbr.core.rules import Rule

Engine = Literal["auto", "low_rank", "compressed", "active_set"]
FULL_RANK = 0.45  # above this share of n, features of x cost more than the active set
ROUGH_RANK = 64  # leading features of full-rank kernels, enough to choose bandwidth and ridge
COMPRESSED_SHARE = 0.6  # compression pays when its pivots are fewer than this share of n
COMPRESSED_LAM = 5e-4  # below this ridge compression loses digits that show
ROUGH_LAM = 1e-6  # below this ridge it loses those by which ridges are told apart
TOLERANCE = 1e-7  # of factors to choose with: that needs fewer digits than filtering
SMALL_ETA = 1e-5  # below this ridge what the factor of the latents leaves out shows
CLOSE = 1e-11  # so it is made again, to this tolerance
Medians = tuple[Tensor | None, ...]  # of x and of z

BELOW, ABOVE = 1e-5, 1e3  # how far lam is searched beyond the rule's usual values, as factors


def latent_tolerance(eta: float) -> float:
    """Of the factor of G_Z: what it leaves out is divided by eta, the smaller of both ridges."""
    return min(max(5e-5 * eta, 1e-13), 1e-7)


def observation_tolerance(lam: float) -> float:
    """Of the factor of G_X: k(x_i, x) of a new x is off by its root, which is divided by lam."""
    return min(max(1e-6 * lam**2, 1e-13), 1e-9)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """The hyper-parameters of a kernel Bayes filter.

    None is searched from data; of several values that are given, one is chosen. `least_lam` and
    `least_eta` end the search where less would be lost in rounding. `medians` are the distances
    that bandwidths of x and z are multiples of, where they are known already.
    """

    rule: Rule
    eta: float | None
    lam_transition: float | None
    scales: Sequence[float] | None
    widths: Sequence[float]
    etas: Sequence[float] | None
    lams: Sequence[float] | None
    engine: Engine
    least_lam: float = 0.0
    least_eta: float = 0.0
    medians: Medians = (None, None)

    def __post_init__(self) -> None:
        if not isinstance(self.rule.ratio, KuLSIF | TransitionRatio):
            raise KbrError(
                "the filter's prior changes at every step, so its ratio is KuLSIF or, where the "
                f"dynamics are known, TransitionRatio; got {type(self.rule.ratio).__name__}."
            )
        for name in ("eta", "lam_transition"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name=name)
        for name in ("scales", "widths", "etas", "lams"):
            grid = getattr(self, name)
            if grid is not None:
                if len(grid) == 0:
                    raise KbrError(f"{name} must hold at least one value; got none.")
                for value in grid:
                    check_positive(value, name=name)

    def measured(self, x: Float[Tensor, "*b n dx"], z: Float[Tensor, "*b n dz"]) -> "Recipe":
        """The same for features of these points at many scales: their medians are found once."""
        pairs = ((self.rule.kernel_x, x), (self.rule.kernel_z, z))
        made = (median_distance(points) if _by_median(kernel) else None for kernel, points in pairs)
        return replace(self, medians=tuple(made))

    def of_members(self, members: Tensor) -> "Recipe":
        """The same for some of the data sets."""
        made = (None if median is None else median[members] for median in self.medians)
        return replace(self, medians=tuple(made))

    def space(self) -> Space:
        """Scales and lams to try; kernels that have a bandwidth of their own are left alone."""
        start = tuple(value / max(self.tried_widths()) for value in START)
        found = {"scales": start} if self.scales is None else _just("scale", self.scales)
        if not (_is_free(self.rule.kernel_x) or _is_free(self.rule.kernel_z)):
            found = _just("scale", (1.0,))
        if self.rule.lam is not None:
            return Space(**found, **_just("lam", (float(self.rule.lam),)))
        if self.lams is not None:
            return Space(**found, **_just("lam", self.lams))
        usual = self.rule.LAMS
        bounds = (max(BELOW * min(usual), self.least_lam), ABOVE * max(usual))
        lams = tuple(lam for lam in usual if lam >= bounds[0]) or (bounds[0],)
        return Space(**found, lams=lams, lam_bounds=bounds)

    @property
    def given_eta(self) -> float | None:
        """The filter's eta, else its ratio's; None: to be chosen."""
        ratio = self.rule.ratio
        if self.eta is None and isinstance(ratio, KuLSIF) and ratio.eta is not None:
            return float(ratio.eta)
        return self.eta

    def tried_widths(self) -> tuple[float, ...]:
        """Widths of x over z."""
        return tuple(self.widths) if _is_free(self.rule.kernel_x) else (1.0,)

    @property
    def eta_bounds(self) -> Bounds:
        """Where eta is searched if there are no `etas`."""
        return max(ETA_BOUNDS[0], self.least_eta), ETA_BOUNDS[1]

    def latents(
        self, z: Float[Tensor, "*b n dz"], scale: float | Tensor, tolerance: float
    ) -> Features:
        """Features Phi of the training latents."""
        return _fit(self.latent_map(scale, tolerance), z)

    def latent_map(self, scale: float | Tensor, tolerance: float) -> FeatureMap:
        """What is fitted to the latents."""
        return _scaled(self.rule.kernel_z, scale, tolerance, self.medians[1])

    def observation_map(self, scale: float | Tensor, tolerance: float) -> FeatureMap:
        """What is fitted to the observations."""
        return _scaled(self.rule.kernel_x, scale, tolerance, self.medians[0])

    def fitted_kernels(
        self, x: Tensor, z: Tensor, scales: tuple[Tensor, Tensor]
    ) -> tuple[Kernel, Kernel]:
        """The kernels in use with their bandwidths; of feature maps, the kernels they stand for."""
        pairs = ((self.rule.kernel_x, scales[0], x), (self.rule.kernel_z, scales[1], z))
        return tuple(_kernel_of(_scaled(k, s, 0.0), p) for k, s, p in pairs)  # type: ignore[return-value]

    def update(
        self,
        x: Float[Tensor, "*b n dx"],
        scale: float | Tensor,
        tolerance: float,
        *,
        lam: float,
        rough: bool = False,
    ) -> Update:
        """The form of the update that suits these observations, or the one asked for.

        `rough` serves tuning: compression, and leading features where the kernel has full rank, may
        then lose what does not change a choice.
        """
        n = x.shape[-2]
        limit = int(n * FULL_RANK)
        chosen = self.observation_map(scale, tolerance)
        if isinstance(chosen, PivotedCholesky):
            if self.engine == "active_set":
                return _active_set(chosen.kernel, x)
            features = _fit(self._limited(chosen, rough, limit), x)
            if self.engine == "auto" and features.train.shape[-1] > limit:
                if rough:
                    return LowRank(_fit(KernelPCA(kernel=chosen.kernel, n_features=ROUGH_RANK), x))
                if self.rule.SPARSE:
                    return _active_set(chosen.kernel, x)
        elif self.engine == "active_set":
            return _active_set(Linear(), chosen.fit(x).train)
        else:
            features = _fit(chosen, x)
        least = lam if self.rule.SPARSE else lam**0.5  # the other rule's is of a squared operator
        exact = least < ROUGH_LAM if rough else lam < COMPRESSED_LAM
        if self.engine == "low_rank" or (self.engine == "auto" and exact):
            return LowRank(features)
        # psi_i psi_i' is off by the root of the tolerance, which must stay far below lam.
        made = compress(features, tolerance=max(1e-14, (1e-3 if rough else 1e-6) * lam**2))
        pays = made.pivots.shape[-2] < COMPRESSED_SHARE * n
        return made if pays or self.engine == "compressed" else LowRank(features)

    def _limited(self, chosen: PivotedCholesky, rough: bool, limit: int) -> PivotedCholesky:
        """No more columns than tell that there are too many, where another form is at hand."""
        other = self.engine == "auto" and (rough or self.rule.SPARSE)
        return replace(chosen, max_rank=limit + 1) if other else chosen

    def ridges(
        self, phi: Float[Tensor, "*b n p"], lengths: Sequence[int]
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
        """eta (leave-one-out unless given) and the transition's ridge (eta unless given)."""
        ones, given = phi.new_ones(phi.shape[:-2]), self.given_eta
        if given is not None:
            eta = given * ones
        else:
            before, after = (rows.to(phi.device) for rows in transition_pairs(lengths))
            score = leave_one_out_score(
                phi, phi.index_select(-2, before), phi.index_select(-2, after)
            )
            if self.etas is None:
                eta = search_ridge(score, ones, self.eta_bounds)
            else:
                scores = torch.stack([score(value) for value in self.etas])
                eta = phi.new_tensor(tuple(self.etas))[scores.argmin(0)]
        return eta, eta if self.lam_transition is None else self.lam_transition * ones

    def ridged_latents(
        self, z: Float[Tensor, "*b n dz"], scale: float | Tensor, lengths: Sequence[int]
    ) -> tuple[Features, dict[str, Tensor]]:
        """Features of the latents close enough to choose with, and both ridges."""
        latents = self.latents(z, scale, TOLERANCE)
        eta, lam_transition = self.ridges(latents.train, lengths)
        if float(eta.min()) < SMALL_ETA:
            latents = self.latents(z, scale, CLOSE)
            eta, lam_transition = self.ridges(latents.train, lengths)
        return latents, {"eta": eta, "lam_transition": lam_transition}

    def operators(
        self,
        update: Update,
        latents: Features,
        z: Float[Tensor, "*b n dz"],
        lengths: Sequence[int],
        *,
        eta: Tensor,
        lam_transition: Tensor,
    ) -> Operators:
        """Everything the filter needs before it sees an observation."""
        if isinstance(self.rule.ratio, TransitionRatio):
            return KnownOperators.of(self.rule, update, z)
        ridges = {"eta": eta, "lam_transition": lam_transition}
        return dense_operators(self.rule, update, latents, z, lengths, **ridges)


def _just(name: str, values: Sequence[float]) -> dict[str, Any]:
    """These values of a space and no others."""
    return {f"{name}s": tuple(values), f"{name}_bounds": None}


def _is_free(kernel: Kernel | FeatureMap) -> bool:
    return (
        isinstance(kernel, Kernel) and kernel.bandwidth is None and not isinstance(kernel, Linear)
    )


def _by_median(kernel: Kernel | FeatureMap) -> bool:
    """Whether the bandwidth will be a multiple of the median distance, as kernels have it."""
    return _is_free(kernel) and type(kernel).fit is Kernel.fit


def has_no_units(kernel: Kernel | FeatureMap) -> bool:
    """Whether the kernel fits itself to its points: it may see them standardised."""
    inner = kernel if isinstance(kernel, Kernel) else getattr(kernel, "kernel", None)
    return isinstance(inner, Kernel) and _is_free(inner)


def _scaled(
    kernel: Kernel | FeatureMap,
    scale: float | Tensor,
    tolerance: float,
    median: Tensor | None = None,
) -> FeatureMap:
    """The kernel's feature map at a bandwidth scale; finished maps and bandwidths stay."""
    if not isinstance(kernel, Kernel):
        return kernel
    if _is_free(kernel):
        scale = kernel.scale * scale
        kernel = replace(kernel, scale=scale, bandwidth=None if median is None else scale * median)
    made = as_feature_map(kernel)
    return replace(made, tolerance=tolerance) if isinstance(made, PivotedCholesky) else made


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
    made = chosen.fit(points)
    return Features(made.train.to(torch.float64).contiguous(), made.function, made.kernel)


def _active_set(kernel: Kernel, x: Tensor) -> ActiveSet:
    fitted = kernel.fit(x)
    return ActiveSet(fitted, x, fitted(x, x))
