"""gpbench: a reproducible comparative study of (deep) Gaussian-process inference."""
