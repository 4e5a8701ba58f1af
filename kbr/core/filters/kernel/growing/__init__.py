"""`partial_fit`: more training pairs, later."""
