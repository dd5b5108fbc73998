"""Chains side by side do not see each other, and rows of padding count for nothing: a check of any operator."""

import dataclasses

import geweke
import numpy as np
import torch
from geweke import packed
from torch.nn.functional import pad

COMPARED = ("psi", "f", "log_lik", "log_estimate", "theta.log_estimate")


def chains(name, count, **settings):
    """A model of `geweke` with data, and the psi and f that they come from."""
    model = geweke.model(name, count, **settings)
    psi, f, y = geweke.joint_draw(model, np.random.default_rng(3))
    return dataclasses.replace(model, y=y), psi, f


def walk(operator, psi, f, noise, settings):
    """State and info after each of the steps of noise `[steps, R, size]`, from psi and f."""
    state, seen = operator.init(operator.model.state(psi, f)), []
    state |= {key: torch.full_like(psi[:, 0], value) for key, value in settings.items()}
    for numbers in noise:
        state, info = operator.step(state, packed(numbers, f.shape[1], operator.per_row))
        seen.append((state, info))
    return seen


def check(make, name, settings, dtype=torch.float64, steps=4, **of_model):
    """Assert it of four chains and one that is lost; make: model -> operator; settings: tensors of the state."""
    model, psi, f = chains(name, 5, **of_model)
    psi[2] = torch.nan
    model = dataclasses.replace(model, **{key: getattr(model, key).to(dtype) for key in ("x", "y", "weight")})
    psi, f, operator = psi.to(dtype), f.to(dtype), make(model)
    size = operator.fixed + f.shape[1] * operator.per_row
    noise = torch.from_numpy(np.random.default_rng(4).standard_normal((steps, 5, size))).to(dtype)
    together, tolerance = walk(operator, psi, f, noise, settings), 1e-9 if dtype == torch.float64 else 2e-3
    for r in (0, 1, 3, 4):
        one = slice(r, r + 1)
        data = {"x": pad(model.x[one], (0, 0, 0, 1))}
        data |= {key: pad(getattr(model, key)[one], (0, 1)) for key in ("y", "weight")}
        alone = make(dataclasses.replace(model, **data))
        own = pad(noise[:, one], (0, operator.per_row))
        for ours, theirs in zip(walk(alone, psi[one], pad(f[one], (0, 1)), own, settings), together, strict=True):
            for key in [key for key in COMPARED if key in ours[0]]:
                expected = theirs[0][key][one]
                expected = pad(expected, (0, 1)) if key == "f" else expected
                torch.testing.assert_close(ours[0][key], expected, rtol=tolerance, atol=tolerance)
                assert ours[0][key].isfinite().all()
            if "theta.acceptance" in ours[1]:
                acceptance = theirs[1]["theta.acceptance"][one]
                torch.testing.assert_close(ours[1]["theta.acceptance"], acceptance, rtol=tolerance, atol=tolerance)
