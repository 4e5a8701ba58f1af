"""Objects from settings: only what may be built, under its present name."""
