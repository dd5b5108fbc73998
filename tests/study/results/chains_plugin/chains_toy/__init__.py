"""A sampler of a target that is known."""
