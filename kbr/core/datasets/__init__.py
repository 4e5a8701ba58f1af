"""Tasks: where training pairs (x, z), test sequences and exact answers come from."""
