"""What `kbr-filter` is made of: rows in, beliefs out, a state between two calls."""
