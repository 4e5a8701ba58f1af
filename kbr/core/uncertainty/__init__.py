"""How sure a belief is, and whether it may be."""

from kbr.core.uncertainty.regions import coverage as coverage
from kbr.core.uncertainty.regions import credible_region as credible_region
from kbr.core.uncertainty.regions import crps as crps
from kbr.core.uncertainty.regions import energy_score as energy_score
from kbr.core.uncertainty.regions import gaussian_crps as gaussian_crps
from kbr.core.uncertainty.regions import gaussian_energy_score as gaussian_energy_score
from kbr.core.uncertainty.regions import gaussian_log_likelihood as gaussian_log_likelihood
from kbr.core.uncertainty.regions import gaussian_pit as gaussian_pit
from kbr.core.uncertainty.regions import marginal_density as marginal_density
from kbr.core.uncertainty.regions import modes as modes
from kbr.core.uncertainty.regions import pit as pit
