"""One filter step as a torch.export program: (state, x) -> (state', mean, cov, evidence).

The program needs torch alone; x, mean and the calibrated covariance are in the units of the data.
`state` is a vector: a one, the predicted belief's coordinates and moments, and the steps since the
last evidence. Zeros are the start, before any observation; NaN in x is a missing observation.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.dynamics.known_transition import KnownOperators
from kbr.core.filters.kernel.engine import LowRank
from kbr.core.filters.kernel.step import Step
from kbr.core.io.checkpoint import write_atomically
from kbr.core.uncertainty.calibration import LONGEST, next_horizon

if TYPE_CHECKING:
    from kbr.core.filters.kernel.fitted import Fitted


class ExportedStep(nn.Module):
    """The step as a module whose constants are the fitted operators."""

    def __init__(self, fitted: "Fitted") -> None:
        super().__init__()
        self.operators, self.reach = fitted.operators, fitted.reach
        self.answering, self.units = fitted.answering, fitted.units
        self.lam, self.correction = fitted.lam.reshape(1), fitted.data.correction
        self.start = fitted.operators.start(1)

    @property
    def size(self) -> int:
        return 2 + self.start.state.shape[-1] + self.start.moments.shape[-1]

    def forward(
        self, state: Float[Tensor, "k"], x: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "k"], Float[Tensor, "dz"], Float[Tensor, "dz dz"], Bool[Tensor, ""]]:
        operators, start = self.operators, self.start
        rank = start.state.shape[-1]
        never = torch.full_like(start.state[..., :1], float(LONGEST))
        known = torch.cat([start.state, start.moments, never], -1)
        packed = torch.where(state[0] == 0, known, state[1:].unsqueeze(0))
        coordinates, moments = packed[:, :rank], packed[:, rank:-1]
        prior = Step(start.weights, coordinates, moments, start.evidence, first=True)
        flat = self.units.x.apply(x).reshape(1, -1)
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, 0.0)
        query = operators.update.observe(flat)
        after = operators.step(prior, query, self.lam, seen, self.reach(flat))
        since = next_horizon(packed[:, -1], after.evidence).clamp_max(LONGEST)
        inner, inner_cov = operators.readout.mean_cov(after.moments)
        if self.correction is not None:
            before = operators.readout.mean(moments)
            inner = inner + self.correction.shift(inner, before, flat, after.evidence)
        mean, raw = self.answering.raw(inner, inner_cov)
        cov = self.answering.calibrated(mean, raw, since, None)
        ahead = operators.predict(after.state)
        one = torch.ones_like(never)
        fresh = torch.cat([one, ahead.state, ahead.moments, since.unsqueeze(-1)], -1)
        return fresh[0], mean[0], cov[0], after.evidence[0]


def export_step(fitted: "Fitted", shape: tuple[int, ...], path: Path) -> None:
    """Write the program; low-rank, compressed and landmark filters of one data set export."""
    operators, lam = fitted.operators, fitted.data.choice.lam
    if not isinstance(operators.update, LowRank) or isinstance(operators, KnownOperators):
        raise KbrError(
            f"the {operators.update.name} engine chooses points by their values, which a program "
            "of fixed shapes cannot. Call compress(n_landmarks) first, or fit with "
            "engine='low_rank'."
        )
    if lam.ndim:
        raise KbrError(
            f"export takes a filter fitted to one data set; this one holds {lam.numel()} of them."
        )
    step = ExportedStep(fitted).eval()
    example = (lam.new_zeros(step.size), lam.new_zeros(shape))
    with torch.no_grad():
        program = torch.export.export(step, example)
    for name, value in program.constants.items():  # copies: the writer warns of views
        program.constants[name] = value.clone(memory_format=torch.contiguous_format)
    write_atomically(path, lambda temporary: _save(program, temporary))


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as file:
        torch.export.save(program, file)
