"""Finished runs: read back from their folders, and measured."""
