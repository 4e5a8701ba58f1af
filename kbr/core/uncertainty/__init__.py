"""How sure a belief is, and whether it may be."""

from kbr.core.uncertainty.regions import (
    coverage,
    credible_region,
    crps,
    energy_score,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_pit,
    marginal_density,
    modes,
    pit,
)

__all__ = [
    "coverage",
    "credible_region",
    "crps",
    "energy_score",
    "gaussian_crps",
    "gaussian_energy_score",
    "gaussian_pit",
    "marginal_density",
    "modes",
    "pit",
]
