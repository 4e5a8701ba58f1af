"""Recurrent networks behind the methods of the kernel filters: what their filters share."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.base import never
from kbr.core.filters.belief import Belief, Moments
from kbr.core.filters.kernel.choosing.held_out import answers
from kbr.core.filters.kernel.choosing.validation import held_out_block, split_lengths
from kbr.core.filters.result import FilterResult
from kbr.core.inputs import check_shares, check_sizes
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
from kbr.training.gaps import hold
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.recurrent import PIECE_STEPS, RecurrentModule, State
from kbr.training.precision import covariance, whitened

LOSSES = ("mse", "likelihood")
BLOCK = 1000  # steps of a sequence that are filtered together


@dataclass(frozen=True, eq=False, repr=False)
class RecurrentBelief(Belief):
    """The network's state and the features of the last frame, None before the first, and the
    moments they lead to.
    """

    state: Float[Tensor, "..."] | None = field(kw_only=True)
    psi: Float[Tensor, "d"] | None = field(kw_only=True)
    inner_mean: Float[Tensor, "dz"] = field(kw_only=True)
    inner_cov: Float[Tensor, "dz dz"] = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return self.inner_mean, self.inner_cov


@dataclass(kw_only=True, eq=False, repr=False)
class RecurrentFilter(TrainedFilter, ABC):
    """A recurrence of `hidden` units over the features of the frames.

    gaps   share of the training frames that are hidden, so that the network learns what a missing
           one means; with 0 it is not told;
    loss   "mse", squared errors, or "likelihood", that of Gaussians whose covariances are learned
           with their means;
    batch  frames that a step of training sees, in pieces drawn anew, None: all. `epochs` then
           counts such steps, and of many sequences whole ones at the end are held out, as by the
           kernel filters.

    Math: C_t = P_t^-1 V P_t^-T is the raw covariance; P_t a function of the network's outputs.
          loss="mse": it is fitted to the errors in training, V is the mean of (P_t e_t)(P_t e_t)'
          over the errors e_t on the validation block, and where these do not support a P_t, it is I
          at every step. loss="likelihood": P_t is the network's own and V = I.

    A frame with a NaN is missing: the features before it are held. Before the first frame the
    answer is the training mean, with the variances of training. A subclass names its network.
    """

    # What serves recurrences best, where it differs: they settle later, underfit with dropout, and
    # overfit where they go on.
    epochs: int = 400
    slack: float = 0.0
    dropout: float | None = 0.0
    hidden: int = 64
    gaps: float = 0.0
    loss: str = "mse"
    batch: int | None = None

    takes_controls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(hidden=self.hidden)
        check_shares(gaps=self.gaps)
        if self.loss not in LOSSES:
            raise KbrError(f"loss must be one of {', '.join(LOSSES)}; got {self.loss}. Set loss.")
        if self.batch is not None and self.batch < self.piece_steps:
            raise KbrError(
                f"batch must be at least {self.piece_steps}, the frames of one piece; got "
                f"{self.batch}. Raise batch, or leave it null for all frames."
            )
        self._cov = torch.empty(0, device="cpu")  # V, above
        self._calibration: Calibration | None = None  # what the validation block says

    @property
    def piece_steps(self) -> int:
        """How long the pieces are that a step of `batch` frames draws."""
        return PIECE_STEPS

    def held_out_from(self, lengths: Sequence[int]) -> int:
        if self.batch is None:
            return super().held_out_from(lengths)
        return held_out_block(lengths).start

    @property
    def calibration(self) -> Calibration | None:
        return self._calibration

    @torch.no_grad()
    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        trained, pieces = split_lengths(self._lengths, self.held_out_from(self._lengths))
        held_out = [self._rows(x, z, *u, piece=piece) for piece in pieces]
        outputs, error = self._errors(held_out)
        if self.loss == "likelihood":
            self._cov = torch.eye(z.shape[-1], dtype=torch.float64, device="cpu")
        else:
            layer, ends = self.recurrent.precision, accumulate(trained, initial=0)
            rows = [self._rows(x, z, *u, piece=piece) for piece in pairwise(ends)]
            layer.fit(self._errors(rows), (outputs, error))
            white = whitened(layer(outputs), error)
            self._cov = white.mT @ white / len(white)
        self.val_mse = float(error.square().sum(-1).mean())
        self.chosen = {}
        self._calibration = self._calibrated(held_out)

    def _rows(self, x: Observations, *rows: Tensor, piece: tuple[int, int]) -> tuple[Tensor, ...]:
        """Latents, features and controls of a piece."""
        z, *u = (part[slice(*piece)] for part in rows)
        return (z, self.encode(x[slice(*piece)])[0][0], *u)

    def _errors(self, pieces: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        """The network's outputs at every step, and the errors of its means."""
        outputs = torch.cat([self._along(self._inputs(*rows)) for _, *rows in pieces])
        return outputs, torch.cat([z for z, *_ in pieces]) - self.recurrent.latents(outputs)

    def fitted_state(self) -> dict[str, Any]:
        known = self._calibration
        return {"cov": self._cov, "calibration": None if known is None else known.record()}

    def restore(self, state: dict[str, Any]) -> None:
        self._cov, parts = state["cov"].double(), state.get("calibration")
        self._calibration = None
        if parts is not None:
            self._calibration = Calibration(**{**parts, "counts": tuple(parts["counts"])})

    @torch.no_grad()
    def _filtered(self, x: Tensor | FileRows, *u: Tensor) -> FilterResult:
        psi, seen, lead = self.encode(x)
        steps = psi.shape[1]
        moves = [part.reshape(-1, steps, part.shape[-1]) for part in u]
        sequences = zip(hold(psi, seen), seen, *moves, strict=True)
        moments = [self._moments_along(*rows) for rows in sequences]
        mean, cov = (torch.stack(parts) for parts in zip(*moments, strict=True))
        return FilterResult(
            mean.reshape(*lead, *mean.shape[1:]),
            cov.reshape(*lead, *cov.shape[1:]),
            seen.reshape(*lead, steps),
        )

    def _moments_along(
        self, psi: Float[Tensor, "t d"], seen: Bool[Tensor, "t"], *u: Float[Tensor, "t du"]
    ) -> Moments:
        """Of a whole sequence, which begins with its first frame that is there."""
        mean, cov = (part.expand(len(psi), *part.shape).clone() for part in self._prior)
        first = int(seen.to(torch.int8).argmax()) if bool(seen.any()) else len(psi)
        if first < len(psi):
            inputs = self._inputs(psi[first:], *(part[first:] for part in u), seen=seen[first:])
            mean[first:], cov[first:] = self._moments(self._along(inputs))
        return mean, cov

    def _start(self, prior: Any) -> RecurrentBelief:
        if prior is not None:
            raise KbrError(f"{type(self).__name__} has no belief to start from. Leave prior out.")
        none = torch.zeros((), dtype=torch.bool, device=self._cov.device)
        mean, cov = self._prior
        return RecurrentBelief(
            none,
            never(none),
            0,
            self._answering(),
            state=None,
            psi=None,
            inner_mean=mean,
            inner_cov=cov,
        )

    @torch.no_grad()
    def _stepped(self, belief: RecurrentBelief, x: Tensor, *u: Tensor) -> RecurrentBelief:
        psi, seen, _ = self.encode(self._one_row(x))
        return self._moved(belief, psi[0, 0] if bool(seen) else None, *u)

    @torch.no_grad()
    def _ahead(self, belief: RecurrentBelief, steps: int, *u: Tensor) -> RecurrentBelief:
        for step in range(steps):
            belief = self._moved(belief, None, *(part[..., step, :] for part in u))
        return belief

    def _moved(self, belief: RecurrentBelief, psi: Tensor | None, *u: Tensor) -> RecurrentBelief:
        """The belief after a frame with these features, or without one."""
        evidence = torch.full_like(belief.evidence, psi is not None)
        held = belief.psi if psi is None else psi
        changed: dict[str, Any] = {}
        if held is not None:
            moves = (part.reshape(1, -1) for part in u)
            inputs = self._inputs(held.unsqueeze(0), *moves, seen=evidence.reshape(1))
            outputs, state = self._recur(inputs.unsqueeze(0), belief.state)
            mean, cov = self._moments(outputs[0, 0])
            changed = {"state": state, "psi": held, "inner_mean": mean, "inner_cov": cov}
        return replace(
            belief,
            evidence=evidence,
            since=next_horizon(belief.since, evidence),
            steps=belief.steps + 1,
            **changed,
        )

    @torch.no_grad()
    def _calibrated(self, pieces: list[tuple[Tensor, ...]]) -> Calibration | None:
        """Errors by horizon: held features in a gap, few frames after one."""
        rows: dict[int, list[HeldOut]] = {}

        def add(horizon: int, outputs: Tensor, z: Tensor) -> None:
            if len(z):
                held_out = answers(self.units.z, *self._moments(outputs), z)
                rows.setdefault(horizon, []).append(held_out)

        for z, psi, *u in pieces:
            inputs = self._inputs(psi, *u).unsqueeze(1)
            outputs, states = self._states(inputs)
            add(0, outputs[WAKING:], z[WAKING:])
            for gap in range(1, min(LONGEST, len(z) - 1) + 1):  # frames that are missing
                none = torch.zeros(len(z) - gap, dtype=torch.bool, device=z.device)
                held = self._inputs(psi[:-gap], *(part[gap:] for part in u), seen=none)
                outputs, states = self._recur(held.unsqueeze(1), states[: len(held)])
                add(gap, outputs[:, 0], z[gap:])
            begun: Tensor | None = None  # states of sequences that start at every step
            for frame in range(min(WAKING, len(z))):
                begun = None if begun is None else begun[: len(z) - frame]
                outputs, begun = self._recur(inputs[frame:], begun)
                add(frame - WAKING, outputs[:, 0], z[frame:])
        if not rows:
            return None
        horizons = sorted(rows)
        parts = [tuple(torch.cat(t) for t in zip(*rows[h], strict=True)) for h in horizons]
        return calibrate(parts, [float(h) for h in horizons])  # type: ignore[arg-type]

    def _inputs(self, psi: Tensor, *u: Tensor, seen: Tensor | None = None) -> Tensor:
        """What the network is fed with; all frames are there unless `seen` says otherwise."""
        there = torch.ones(psi.shape[:-1], dtype=torch.bool, device=psi.device)
        return self.recurrent.inputs(psi, there if seen is None else seen, *u)

    def _along(self, inputs: Float[Tensor, "t d"]) -> Float[Tensor, "t h"]:
        """Outputs at every step of a sequence, some steps at a time."""
        state, outputs = None, []
        for some in torch.split(inputs, BLOCK):
            output, state = self._recur(some.unsqueeze(0), state)
            outputs.append(output[0])
        return torch.cat(outputs)

    def _states(self, inputs: Float[Tensor, "t 1 d"]) -> tuple[Float[Tensor, "t h"], State]:
        """Outputs at every step of a sequence, and the states after each."""
        state, outputs, states = None, [], []
        for row in torch.split(inputs, 1):
            output, state = self._recur(row, state)
            outputs.append(output[0])
            states.append(state)
        return torch.cat(outputs), torch.cat(states)

    def _recur(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Float[Tensor, "s t h"], State]:
        """One or more steps of the network, wherever it is; results are on the CPU."""
        device = self.recurrent.z_mean.device
        before = None if state is None else state.to(device)
        outputs, after = self.recurrent.recur(inputs.to(device), before)
        return outputs.cpu(), after.cpu()

    def _moments(self, outputs: Float[Tensor, "*t h"]) -> Moments:
        """Math: m_t, and C_t = P_t^-1 V P_t^-T."""
        network = self.recurrent
        there = outputs.to(network.z_mean.device)
        mean, whitening = network.latents(there).cpu(), network.whitening(there).cpu()
        return mean, covariance(whitening, self._cov)

    @property
    def _prior(self) -> Moments:
        network = self.recurrent
        return network.z_mean.cpu(), torch.diag(network.z_scale.cpu().square())

    @property
    def recurrent(self) -> RecurrentModule:
        module = self._get()
        assert isinstance(module, RecurrentModule)
        return module
