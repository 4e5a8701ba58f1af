"""Learned features: Lightning modules, data modules and encoders around `kbr.core`."""
