"""Jitter: what is added to the diagonal of a covariance matrix so that it has a Cholesky factor, relative to its scale.

Methods that add another one always have it as their hyperparameter `jitter`.
"""

DEFAULT_JITTER = 1e-6
"""Always added by models whose method has no such hyperparameter."""
FIRST_JITTER, LAST_JITTER, JITTER_GROWTH = 1e-8, 1e-4, 10.0
"""Tried in turn where a matrix has no factor (`linalg.cholesky`)."""
