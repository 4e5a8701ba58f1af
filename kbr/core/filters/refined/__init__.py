"""The kernel Bayes filter with its bandwidths and ridges refined by gradient."""

from kbr.core.filters.refined.filter import RefinedFilter

__all__ = ["RefinedFilter"]
