"""One filter step as a torch.export program: (state, x) -> (state', mean, cov, evidence).

The program needs torch alone. `state` is a vector: a one, then the predicted belief's coordinates
and moments. Zeros are the start, before any observation; NaN in x is a missing observation.
"""

from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kbr.core.checkpoint import write_atomically
from kbr.core.errors import KbrError
from kbr.core.filters.belief import result_from_moments
from kbr.core.filters.engine import LowRank
from kbr.core.filters.known_transition import KnownOperators
from kbr.core.filters.operators import FilterOperators, Step

COPIED = ("points", "marginal", "prediction")


class ExportedStep(nn.Module):
    """The step as a module whose constants are the fitted operators."""

    def __init__(self, operators: FilterOperators, lam: Float[Tensor, ""]) -> None:
        super().__init__()
        # Copies: the writer of programs warns of views and of columns first.
        own = {name: getattr(operators, name).clone() for name in COPIED}
        own = {name: value.contiguous() for name, value in own.items()}
        self.operators = replace(operators, **own)
        self.lam = lam.reshape(1).clone()
        self.start = operators.start(1)

    @property
    def size(self) -> int:
        """Length of the state."""
        return 1 + self.start.state.shape[-1] + self.start.moments.shape[-1]

    def forward(
        self, state: Float[Tensor, "k"], x: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "k"], Float[Tensor, "dz"], Float[Tensor, "dz dz"], Bool[Tensor, ""]]:
        operators, start = self.operators, self.start
        rank, dz = start.state.shape[-1], operators.points.shape[-1]
        known = torch.cat([start.state, start.moments], -1)
        packed = torch.where(state[0] == 0, known, state[1:].unsqueeze(0))
        none = torch.zeros(1, dtype=torch.bool)
        prior = Step(start.weights, packed[:, :rank], packed[:, rank:], none)
        flat = x.reshape(1, -1).to(torch.float64)
        seen = flat.isfinite().all(-1)
        query = operators.update.observe(torch.where(seen.unsqueeze(-1), flat, 0.0))
        made = operators.step(prior, prior.state, query, seen, self.lam)
        ahead = operators.predict(made.state)
        moments = result_from_moments(
            made.moments.unsqueeze(0),
            made.evidence.unsqueeze(0),
            torch.ones(1, 1, dtype=torch.float64),
            made.state.unsqueeze(0),
            dz,
        )
        one = torch.ones(1, 1, dtype=torch.float64)
        fresh = torch.cat([one, ahead.state, ahead.moments], -1)
        return fresh[0], moments.mean[0, 0], moments.cov[0, 0], made.evidence[0]


def export_step(
    operators: FilterOperators, lam: Float[Tensor, "*b"], shape: tuple[int, ...], path: Path
) -> None:
    """Write the program; low-rank, compressed and landmark filters of one data set export."""
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
    step = ExportedStep(operators, lam).eval()
    example = (torch.zeros(step.size, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))
    with torch.no_grad():
        program = torch.export.export(step, example)
    write_atomically(path, lambda temporary: _save(program, temporary))


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as file:
        torch.export.save(program, file)
