"""Transitions beside the learned one: moved by controls, or known."""
