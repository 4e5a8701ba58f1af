"""Finished runs evaluated, compared and put on a page."""
