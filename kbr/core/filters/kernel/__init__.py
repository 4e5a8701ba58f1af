"""The kernel Bayes filter."""
