"""The outermost layer: Hydra entry points, run folders, tables and figures."""
