"""The kernel Bayes filter refined: values by gradient, means corrected."""

from kbr.core.filters.refined.filter import RefinedFilter

__all__ = ["RefinedFilter"]
