"""Means over the transitions of a chain, which a method reports: operations, acceptances, divergences, E-BFMI.

Of energies E_1, ..., E_T, as `T` trajectories of Hamiltonian dynamics begin, the energy Bayesian fraction of missing
information is sum_t (E_t - E_(t-1))^2 / sum_t (E_t - mean E)^2: about 1 where new momenta alone explore the energies
of the posterior, small (below 0.3) where they change too little (betancourt2016). It is summed up on the way, of
E - E_1, which loses no digits to the size of E.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.sampling.latent.model import COUNTS, Info, State

SHARES = {"acceptance.latents": "latents.acceptance", "acceptance.theta": "theta.acceptance", "divergent": "divergent"}
"""Names of sums of shares, and what they are called in the info of an operator."""

ENERGIES = ("energy.first", "energy.last", "energy.sum", "energy.squares", "energy.jumps")
"""The first and the last energy, sums of E - E_1 and of its square, and of (E_t - E_(t-1))^2."""


def start(like: Tensor) -> State:
    """Sums before the first transition, each like a tensor `[R]`."""
    names = [*(f"count.{name}" for name in ("steps", *COUNTS)), *SHARES, *ENERGIES]
    return {name: torch.zeros_like(like) for name in names}


def add(sums: State, info: Info) -> State:
    """Sums with those of one more transition."""
    terms = {f"count.{name}": info.get(name, 0.0) for name in COUNTS} | {"count.steps": 1.0}
    terms |= {name: info.get(own, torch.nan) for name, own in SHARES.items()}
    return {name: sums[name] + value for name, value in terms.items()} | with_energy(sums, info)


def with_energy(sums: State, info: Info) -> State:
    """`ENERGIES` with that of one more transition; NaN of an operator that has none."""
    begins = sums["count.steps"] == 0
    energy = torch.as_tensor(info.get("energy", torch.nan)).expand_as(sums["energy.last"])
    first, last = (torch.where(begins, energy, sums[f"energy.{name}"]) for name in ("first", "last"))
    terms = {"sum": energy - first, "squares": (energy - first).square(), "jumps": (energy - last).square()}
    return {
        "energy.first": first,
        "energy.last": energy,
        **{f"energy.{name}": sums[f"energy.{name}"] + value for name, value in terms.items()},
    }


def e_bfmi(sums: State) -> Tensor:
    """E-BFMI of each chain `[R]`; NaN without energies, and of a single transition."""
    squares = sums["energy.squares"] - sums["energy.sum"].square() / sums["count.steps"].clamp_min(1)
    return sums["energy.jumps"] / torch.where(squares > 0, squares, torch.nan)


def means(sums: State) -> State:
    """Means per transition `[R]`, named as in `SamplerMethod.report`."""
    steps = sums["count.steps"].clamp_min(1)
    counts = {name: sums[f"count.{name}"] / steps for name in COUNTS}
    return counts | {name.replace(".", "_"): sums[name] / steps for name in SHARES} | {"e_bfmi": e_bfmi(sums)}
