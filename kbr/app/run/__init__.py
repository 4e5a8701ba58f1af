"""One training run, from its settings to its folder."""
