"""The mathematics of kernel Bayes' rule: torch and numpy only, no Lightning, no Hydra."""
