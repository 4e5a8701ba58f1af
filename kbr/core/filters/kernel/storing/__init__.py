"""A filter in files: checkpoints and exported programs."""
