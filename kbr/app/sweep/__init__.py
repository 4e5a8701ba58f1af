"""Sweeps and searches: what happens around their cells."""
