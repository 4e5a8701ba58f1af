"""Filters with a trained encoder."""
