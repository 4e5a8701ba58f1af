"""How sure a filter is, measured: coverage of its regions, CRPS and energy score."""

from torch import Tensor

from kbr.app.models.kernel import Outcome
from kbr.core.uncertainty.regions import coverage, gaussian_crps, gaussian_energy_score


def trial_coverage(outcome: Outcome) -> dict[str, Tensor]:
    """Share of truths in their 90 % regions, one number a trial: calibrated, and of the weights."""
    if outcome.evidence is None or outcome.cov is None:
        return {}
    mean, truth = outcome.mean.double(), outcome.truth.double()
    raw = outcome.cov if outcome.raw_cov is None else outcome.raw_cov
    covs = {"coverage_90": outcome.cov, "coverage_90_raw": raw}
    return {n: coverage(mean, cov.double(), truth, level=0.9) for n, cov in covs.items()}


def uncertainty_metrics(outcome: Outcome) -> dict[str, float]:
    """Coverage of 90 % regions, CRPS and energy score of the calibrated beliefs, averaged."""
    shares = trial_coverage(outcome)
    if outcome.cov is None or not shares:
        return {}
    mean, cov, truth = (t.double() for t in (outcome.mean, outcome.cov, outcome.truth))
    return {
        **{f"test/{name}": float(share.mean()) for name, share in shares.items()},
        "test/crps": float(gaussian_crps(mean, cov, truth).mean()),
        "test/energy_score": float(gaussian_energy_score(mean, cov, truth).mean()),
    }
