"""Data of one's own: arrays, tables and image folders become a filtering task."""
