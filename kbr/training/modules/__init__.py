"""LightningModules: what is trained."""
