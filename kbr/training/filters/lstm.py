"""LSTM: the paper's neural baseline, behind the same methods as the kernel filters."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.base import never
from kbr.core.filters.belief import Belief, Moments
from kbr.core.filters.kernel.held_out import answers
from kbr.core.filters.kernel.validation import split_lengths, validation_start
from kbr.core.filters.result import FilterResult, mean_squared_error
from kbr.core.inputs import check_sizes
from kbr.core.io.file_rows import FileRows
from kbr.core.uncertainty.calibration import (
    LONGEST,
    WAKING,
    Calibration,
    HeldOut,
    calibrate,
    next_horizon,
)
from kbr.training.data import Observations
from kbr.training.filters.trained import TrainedFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.lstm import LSTMModule


@dataclass(frozen=True, eq=False, repr=False)
class LSTMBelief(Belief):
    """The features of the last frames, None before the first, and the moments they lead to."""

    window: Float[Tensor, "w d"] | None = field(kw_only=True)
    inner_mean: Float[Tensor, "dz"] = field(kw_only=True)
    inner_cov: Float[Tensor, "dz dz"] = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return self.inner_mean, self.inner_cov


@dataclass(kw_only=True, eq=False, repr=False)
class LSTMFilter(TrainedFilter):
    """An LSTM over the features of the last `window` frames; `hidden` units.

    It has no covariance of its own: the raw one is that of its errors on the validation block, the
    same at every step; calibration makes it one for each horizon. A frame with a NaN is missing:
    the features before it are held. Before the first frame the answer is the training mean.

    Ref: Xu et al. 2022, section 5.3.
    """

    # What serves this model best, where it differs: it settles later, underfits with dropout, and
    # overfits where it goes on.
    epochs: int = 400
    slack: float = 0.0
    noise: float = 0.5
    dropout: float | None = 0.0
    window: int = 10
    hidden: int = 64

    kind: ClassVar[str] = "kbr.lstm_filter"
    network: ClassVar[type[SequenceModule]] = LSTMModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(window=self.window, hidden=self.hidden)
        self._cov = torch.empty(0, device="cpu")
        self._calibration: Calibration | None = None  # what the validation block says

    @property
    def calibration(self) -> Calibration | None:
        return self._calibration

    @torch.no_grad()
    def finish(self, module: SequenceModule, x: Observations, z: Tensor) -> None:
        cut = validation_start(z.shape[0])
        _, pieces = split_lengths(self._lengths, cut)
        held_out = [(self.encode(x[a:b])[0][0], z[a:b]) for a, b in pieces]
        mean = torch.cat([self._latents(self.lstm.windows(psi)) for psi, _ in held_out])
        error = mean - z[cut:]
        self._cov = error.mT @ error / error.shape[0]
        self.val_mse = float(mean_squared_error(mean, z[cut:]))
        self.chosen = {}
        self._calibration = self._calibrated(held_out)

    def fitted_state(self) -> dict[str, Any]:
        known = self._calibration
        parts = None if known is None else {**vars(known), "counts": list(known.counts)}
        return {"cov": self._cov, "calibration": parts}

    def restore(self, state: dict[str, Any]) -> None:
        self._cov, parts = state["cov"].double(), state.get("calibration")
        self._calibration = None
        if parts is not None:
            self._calibration = Calibration(**{**parts, "counts": tuple(parts["counts"])})

    @torch.no_grad()
    def _filtered(self, x: Tensor | FileRows) -> FilterResult:
        psi, seen, lead = self.encode(x)
        answers = [self._latents(self.lstm.windows(rows)) for rows in hold(psi, seen)]
        began = seen.cummax(1).values.unsqueeze(-1)
        mean = torch.where(began, torch.stack(answers), self.lstm.z_mean.cpu())
        shape = (*lead, mean.shape[1])
        return FilterResult(
            mean.reshape(*shape, self._dz),
            self._cov.expand(*shape, *self._cov.shape),
            seen.reshape(shape),
        )

    def _start(self, prior: Any) -> LSTMBelief:
        if prior is not None:
            raise KbrError("an LSTM has no belief to start from. Leave prior out.")
        none = torch.zeros((), dtype=torch.bool, device=self._cov.device)
        mean, moments = self.lstm.z_mean.cpu(), self._answering()
        return LSTMBelief(
            none, never(none), 0, moments, window=None, inner_mean=mean, inner_cov=self._cov
        )

    @torch.no_grad()
    def _stepped(self, belief: LSTMBelief, x: Tensor) -> LSTMBelief:
        psi, seen, _ = self.encode(self._one_row(x))
        return self._moved(belief, psi[0, 0] if bool(seen) else None)

    @torch.no_grad()
    def _ahead(self, belief: LSTMBelief, steps: int) -> LSTMBelief:
        for _ in range(steps):
            belief = self._moved(belief, None)
        return belief

    def _moved(self, belief: LSTMBelief, psi: Tensor | None) -> LSTMBelief:
        """The belief after a frame with these features, or without one."""
        window, mean = belief.window, belief.inner_mean
        latest = psi if psi is not None or window is None else window[-1]
        if latest is not None:
            rest = latest.expand(self.window - 1, -1) if window is None else window[1:]
            window = torch.cat([rest, latest.unsqueeze(0)])
            mean = self._latents(window.unsqueeze(0))[0]
        evidence = torch.full_like(belief.evidence, psi is not None)
        return replace(
            belief,
            evidence=evidence,
            since=next_horizon(belief.since, evidence),
            steps=belief.steps + 1,
            window=window,
            inner_mean=mean,
        )

    @torch.no_grad()
    def _calibrated(self, pieces: list[tuple[Tensor, Tensor]]) -> Calibration | None:
        """Errors by horizon: held features in a gap, few frames after one."""
        rows: dict[int, list[HeldOut]] = {}
        for psi, z in pieces:
            time = torch.arange(len(z), device=z.device).unsqueeze(-1)
            back = torch.arange(-self.window + 1, 1, device=z.device)
            for horizon in range(-WAKING, LONGEST + 1):
                gap = max(horizon, 0)  # frames that are missing
                begun = horizon + WAKING if horizon < 0 else len(z)  # frames ago
                some = time[min(gap or WAKING, begun) :]
                if len(some):
                    index = (some + back).minimum(some - gap).maximum(some - begun).clamp_min(0)
                    mean = self._latents(psi[index])
                    cov = self._cov.expand(len(some), *self._cov.shape)
                    held_out = answers(self.units.z, mean, cov, z[some.squeeze(-1)])
                    rows.setdefault(horizon, []).append(held_out)
        if not rows:
            return None
        horizons = sorted(rows)
        parts = [tuple(torch.cat(t) for t in zip(*rows[h], strict=True)) for h in horizons]
        return calibrate(parts, [float(h) for h in horizons])  # type: ignore[arg-type]

    def _latents(self, windows: Float[Tensor, "t w d"]) -> Float[Tensor, "t dz"]:
        """Inner latents at the end of every window, on the CPU."""
        return self.lstm.latents_of(windows.to(self.lstm.z_mean.device)).cpu()

    @property
    def lstm(self) -> LSTMModule:
        module = self._get()
        assert isinstance(module, LSTMModule)
        return module


def hold(psi: Float[Tensor, "s t d"], seen: Bool[Tensor, "s t"]) -> Float[Tensor, "s t d"]:
    """Rows that are missing become the last one seen; before the first one seen, that one."""
    steps = torch.arange(psi.shape[1], device=psi.device).expand(psi.shape[:2])
    last = torch.where(seen, steps, -1).cummax(1).values
    first = seen.to(torch.int8).argmax(1, keepdim=True).expand_as(last)
    index = torch.where(last >= 0, last, first)
    return psi.gather(1, index.unsqueeze(-1).expand_as(psi))
