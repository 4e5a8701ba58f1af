"""Files: checkpoints, arrays, rows that stay in them, and memory."""
