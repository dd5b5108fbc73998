"""What the kept states of a Markov chain say one by one: the draws that tell whether chains have mixed.

    chain        rows `[K]`: up to 50 rows, evenly through the test rows of the split; mean and log_density
                 `[S, K, P]`: of the predictive of each of S kept states, in original units (in classification, P = 1,
                 mean is the probability of the observed class); the covariance parameters `[S, ...]` that are among the
                 states, as they are sampled.

Every state is asked on its own with the noise of replica 0. What a deep model draws in its hidden layers is thus the
same for all states of all chains of a split, so that nothing but the chain moves: fresh noise for every state would
look like mixing.
"""

import numpy as np
import torch

from gpbench.data.table import Table, evenly
from gpbench.errors import UserError
from gpbench.methods.base import SamplerMethod, State
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive
from gpbench.study.fitting.fold import Fold

MOST_ROWS = 50


@torch.no_grad()
def draws(method: SamplerMethod, state: State, fold: Fold, table: Table, task: str) -> dict[str, np.ndarray]:
    """The part `chain` of the arrays of one replica's state, whose tensors have a replica axis of length 1."""
    rows = fold.test[evenly(len(fold.test), MOST_ROWS)]
    like = next(iter(state.params.values()))
    x = torch.as_tensor(fold.scaling.inputs(table.inputs[rows])).to(like)[None]
    samples = state.samples or {name: [value] for name, value in state.params.items()}
    key, predicted = fold.key._replace(replica=0), []
    for kept in zip(*samples.values(), strict=True):
        alone = {name: [value] for name, value in zip(samples, kept, strict=True)}
        predictive = method.predict(State(state.params, state.buffers, samples=alone), x, key)
        predicted.append(_predicted(predictive, fold, rows, task))
    mean, log_density = (np.stack(part) for part in zip(*predicted, strict=True))
    names = [name for name in samples if name.endswith(tuple(method.covariance_parameters))]
    if taken := {*names} & {"rows", "mean", "log_density"}:
        raise UserError(
            f"covariance parameter {min(taken)!r} has the name of what is kept of predictions; give it another"
        )
    covariance = {name: torch.cat(samples[name]).double().cpu().numpy() for name in names}
    return {"rows": rows, "mean": mean, "log_density": log_density, **covariance}


def _predicted(predictive: Predictive, fold: Fold, rows: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean (probability of the observed class) and log density of the targets at some rows, each `[K, P]`."""
    y = fold.targets[rows]
    if isinstance(predictive, Categorical):
        log_density = predictive.log_prob(y[:, 0])[:, None]
        return np.exp(log_density), log_density
    if task == "regression" and isinstance(predictive, GaussianMixture):
        predictive = predictive.affine(scale=fold.scaling.y_scale, shift=fold.scaling.y_shift)
    return predictive.mean(), predictive.log_prob(y)
