"""Kernel Bayes' rule with learned features."""
