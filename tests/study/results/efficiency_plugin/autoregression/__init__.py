"""Chains whose autocorrelation is known."""
