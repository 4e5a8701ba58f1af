"""Filters that are given the model: Kalman and its kin, particles."""
