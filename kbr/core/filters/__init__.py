"""Filters: from a sequence of observations to beliefs about the latent at every step."""
