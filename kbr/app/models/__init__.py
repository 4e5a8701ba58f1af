"""Models as the command line runs them."""
