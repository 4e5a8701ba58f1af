"""Pictures of runs, sweeps and recordings."""
