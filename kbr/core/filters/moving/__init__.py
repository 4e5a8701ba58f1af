"""A filter whose support moves: learned dynamics carry points, learned sensors weigh them."""
