"""E-BFMI of a chain by Hamiltonian dynamics, from the potential energies of the draws that it keeps.

The energy Bayesian fraction of missing information of energies E_1, ..., E_T, as trajectories begin, is
sum_t (E_t - E_(t-1))^2 / sum_t (E_t - mean E)^2: about 1 where new momenta alone explore the energies of the posterior,
small (below 0.3) where they change too little, so that tails are hardly seen (betancourt2016). E = U(w) + |p|^2 / 2
with d coordinates, p ~ N(0, I) apart from w. A trajectory keeps E, so that E_t - E_(t-1) is the difference of the
kinetic energies of the new momentum and of that in which the last trajectory ended, which in the stationary chain are
independent and both half a chi-squared variable of d degrees, of variance d / 2. Hence

    E-BFMI = d / (Var[U] + d / 2)

where both sums are replaced by what they estimate, and Var[U] is that of the draws: thinned ones serve as well, and no
transition needs to leave its energy behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.methods.base import SamplerMethod, State

if TYPE_CHECKING:
    from gpbench.sampling.latent.model import Model


def report(method: SamplerMethod, state: State, r: int) -> dict[str, float]:
    """What a method reports of chain r, with e_bfmi where its draws of psi and f are those of Hamiltonian dynamics."""
    reported = {name: float(values[r]) for name, values in method.report(state).items()}
    if not {"psi", "f"} <= state.samples.keys():
        return reported
    from gpbench.methods import mcmc_gp  # half a second, for SciPy's laws
    from gpbench.sampling.latent.whitened import Hamiltonian

    if not isinstance(method, mcmc_gp.Method):
        return reported
    method.prepare(mcmc_gp.rows_of(state))  # it may have seen no rows since it was resumed, or those of one replica
    if not isinstance(operator := method.operator, Hamiltonian):
        return reported
    model = operator.model.of(torch.tensor([r]))
    kept = zip(state.samples["psi"], state.samples["f"], strict=True)
    values = torch.cat([potential(model, psi[r : r + 1], f[r : r + 1]) for psi, f in kept])
    linalg.events()  # what factors need here is no part of the fit
    return reported | {"e_bfmi": float(e_bfmi(values, model.num_parameters + int(model.weight.sum())))}


@torch.no_grad()
def potential(model: Model, psi: Tensor, f: Tensor) -> Tensor:
    """U(w) = |nu|^2 / 2 - log p(y | f) - log p(psi) `[R]`, up to a constant, in w = (psi, nu), nu = L^-1 f."""
    nu = linalg.solve(model.factor(psi), f)
    return 0.5 * nu.square().sum(1) - model.log_lik(f) - model.log_prior(psi)


def e_bfmi(potentials: Tensor, coordinates: int) -> Tensor:
    """d / (Var[U] + d / 2) of potential energies `[T]` in d coordinates; NaN of a single one."""
    if len(potentials) < 2:
        return torch.tensor(torch.nan)
    return coordinates / (potentials.double().var() + 0.5 * coordinates)
