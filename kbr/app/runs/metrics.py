"""How sure a filter is, measured: coverage of its regions, log-likelihood and other scores."""

from torch import Tensor

from kbr.app.models.kernel import Outcome
from kbr.core.uncertainty.regions import (
    coverage,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_log_likelihood,
)


def trial_uncertainty(outcome: Outcome) -> dict[str, Tensor]:
    """One number a trial: the share of truths in their 90 % regions, calibrated and of the weights,
    and the log-likelihood of a truth, on average."""
    if outcome.evidence is None or outcome.cov is None:
        return {}
    mean, truth = outcome.mean.double(), outcome.truth.double()
    raw = outcome.cov if outcome.raw_cov is None else outcome.raw_cov
    covs = {"coverage_90": outcome.cov, "coverage_90_raw": raw}
    shares = {n: coverage(mean, cov.double(), truth, level=0.9) for n, cov in covs.items()}
    likelihood = gaussian_log_likelihood(mean, outcome.cov.double(), truth).mean(-1)
    return {**shares, "log_likelihood": likelihood}


def uncertainty_metrics(outcome: Outcome) -> dict[str, float]:
    """Coverage of 90 % regions, log-likelihood, CRPS and energy score of the calibrated beliefs,
    averaged."""
    shares = trial_uncertainty(outcome)
    if outcome.cov is None or not shares:
        return {}
    mean, cov, truth = (t.double() for t in (outcome.mean, outcome.cov, outcome.truth))
    return {
        **{f"test/{name}": float(share.mean()) for name, share in shares.items()},
        "test/crps": float(gaussian_crps(mean, cov, truth).mean()),
        "test/energy_score": float(gaussian_energy_score(mean, cov, truth).mean()),
    }
