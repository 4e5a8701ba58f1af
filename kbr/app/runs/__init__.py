"""Finished runs, read back from their folders."""
