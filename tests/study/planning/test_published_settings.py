"""Presets and studies of papers have the settings that the papers, or their programs, state.

Those of random-feature deep GPs are in tests/methods/test_dgp_rff_settings.py, of STRIDE in test_stride_settings.py,
numbers of transitions in test_paper_budget.py.
"""

from __future__ import annotations

import math

import pytest

from cases import CONF
from gpbench import config
from gpbench.gp import inducing_priors
from gpbench.methods import cg_prior, ipvi_dgp, mcmc_svgp, sgld_ulisse, svm
from gpbench.places import Places
from gpbench.sampling import pcn, tuning
from gpbench.sampling.latent import approximations
from gpbench.solvers import laplace, preconditioners
from gpbench.study.planning.resolve import resolve
from projects import REPOSITORY

OF_2020 = {  # ashman2020; kernels, noise and q start as in its program
    "num_inducing": 100, "ard": True, "lengthscale": 1.0, "outputscale": 1.0, "noise_variance": 0.05, "jitter": 1e-6,
    "learning_rate": 0.01, "decay": 0.0, "batch_size": 10_000, "samples_train": 1, "samples_test": 100,
    "natural_gradients": "none",
}  # fmt: skip
DEEP = {"layers": 2, "hidden_width": 30, "inner_chol_factor": 1e-5, "start_rows": 0}
OF_2021 = {"num_inducing": 100, "batch_size": 1000, "learning_rate": 0.01}  # rossi2021, Adam
SAMPLED = OF_2021 | {"friction": 0.05, "noise_variance": 1.0, "lengthscale": None, "ard": True, "objective": "fitc"}
TALL = {"lengthscale": 2.0, "outputscale": 2.0, "batch_size": 1000}  # images
OF_2015 = {"threshold": 1.0, "weights": "exponential", "weight": 1.0, "num_probes": 4, "probe_steps": 20}

PRESETS = {
    "svgp_2020": OF_2020 | {"optimiser": "adam"},
    "dsvi_2020": OF_2020 | DEEP | {"inner_outputscale": 1.0, "layer_noise_variance": 1e-5},
    "dsvi_2017": OF_2020 | DEEP | {"inner_outputscale": 1.0, "ard": False, "layer_noise_variance": 0.0},
    "svgp_images": OF_2020 | TALL | {"num_inducing": 500, "optimiser": "adam"},
    "dsvi_images": OF_2020 | DEEP | TALL | {"inner_outputscale": 2.0},
    "aep": {
        "layers": 2, "hidden_width": 2, "num_inducing": 100, "power": 1.0, "mean_function": "zero", "batch_size": 50,
        "learning_rate": 0.01, "lengthscale": 0.5, "outputscale": 0.25, "layer_noise_variance": 0.01,
        "noise_variance": 1e-4,
    },
    "aep_images": {"hidden_width": 30, "num_inducing": 100, "batch_size": 1000, "learning_rate": 0.001},
    "aep_2016": {"separate": "all", "lengthscale": 1.0, "hidden_lengthscale": 2.718, "learning_rate": 0.005},
    "svgp_2021": OF_2021 | {"optimiser": "adam"},
    "fitc_svgp": OF_2021,
    "bsgp_1": SAMPLED | {"sampled": "u_theta_z", "prior": "normal", "outputscale": 0.1, "window": 64},
    "sghmc_dgp_1": SAMPLED | {"sampled": "u", "outputscale": 0.01, "window": 100},
    "ipvi_dgp_1": {
        "num_inducing": 100, "batch_size": 1000, "num_samples": 100, "discriminator_rate": 0.005,
        "generator_rate": 0.0001, "learning_rate": 0.0025,
    },
    "kiss_gp": {"grid_size": 10},
    "dkl": {
        "hidden_units": (1000, 1000, 500, 50), "num_outputs": 2, "grid_size": 100, "learning_rate": 0.001,
        "gp_learning_rate": 0.01,
    },
    "dnn": {"dropout": 0.5, "units": None, "match_basis": 200, "match_width": 3, "batch_size": 200},
    "dnn_images": {"dropout": 0.5, "units": 800, "batch_size": 1000, "learning_rate": 0.001},
    "dgp_mcmc": {"burn_in": 0.1, "num_samples": 100, "jitter": 1e-6, "num_features": 50, "noise": "fixed"},
    "gp_pcg_2016": {
        "ard": True, "lengthscale": None, "outputscale": 1.0, "noise_variance": 0.1, "preconditioner": "nystrom",
        "rank": 4.0, "num_probes": 4, "tolerance": 1e-5, "cap": 100_000, "learning_rate": 1.0, "warm_start": False,
    },
    "gp_cg_2016": {"preconditioner": "none", "num_probes": 4, "tolerance": 1e-5, "cap": 100_000, "learning_rate": 1.0},
    "pcg_grid": {
        "rank": None, "outputscale": 1.0, "accuracy": 1e-5, "cap": 100_000, "subset": None, "lengthscale_low": -3.0,
        "lengthscale_high": 2.0, "lengthscale_points": 6, "noise_low": -6.0, "noise_high": 0.0, "noise_points": 7,
    },
    "cg_prior": {"draws": 200, "repetitions": 100, "cap_per_row": 10, "subset": None},
    "sgld_ulisse_2015": OF_2015 | {"subset": 500, "first_step": 0.1, "last_step": 1e-4},
    "sgld_ulisse_2015_census": OF_2015 | {"subset": 1000, "first_step": 0.05, "last_step": 5e-6},
    "gp_mh": {"burn_in": 0.2},
    "mcmc_svgp_coal": {"num_inducing": 30, "lengthscale_shape": 2.0, "lengthscale_rate": 3.2, "exposure": 0.955},
    "mcmc_svgp_pines": {"num_inducing": 225},
    "mcmc_svgp_images": {"num_inducing": 500},
    "multinomial_gp": {
        "approach": "e", "leapfrogs": 10, "step_size": 0.5, "weight_step_size": 0.2, "scaled": True,
        "num_samples": 1000, "samples_test": 100,
    },
    "simple_mkl": {"penalties": tuple(10.0**k for k in range(-5, 6)), "folds": None, "tolerance": 0.01, "scaled": True},
}  # fmt: skip

WIDE = {"lengthscale_shape": 1.0, "lengthscale_rate": 1.0, "variance_prior": "inverse_gamma", "variance_shape": 1.0}
OF_2013 = WIDE | {"variance_rate": 1.0, "leapfrogs": 10, "ard": True, "num_samples": 20_000}
OF_2014 = {"lengthscale_shape": 1.0, "lengthscale_rate": None, "variance_prior": "gamma", "ard": False}
SIMULATED = OF_2014 | {"variance_shape": 1.2, "variance_rate": 0.2, "outputscale": None}
REAL = OF_2014 | {"variance_shape": 1.1, "variance_rate": 0.1, "outputscale": None}

STUDIES = {
    ("filippone2013_latents", "hmc_v2"): OF_2013 | {"sampler": "latents", "latents": "hmc_v2"},
    ("filippone2013_theta", "sa_hmc"): OF_2013 | {"start": "uniform", "theta": "hmc"},
    ("filippone2013_parameterisations", "surr"): OF_2013 | {"start": "uniform", "latents": "hmc_v2", "theta": "mh"},
    ("filippone2013_real", "khr"): OF_2013 | {"start": "prior", "latent_updates": 5},
    ("filippone2014_estimator", "ep_64"): {
        "lengthscale_shape": 1.0, "lengthscale_rate": pytest.approx(2**-0.5), "outputscale": 2.08, "num_importance": 64,
        "num_samples": 500,
    },
    ("filippone2014_efficiency", "la_16"): SIMULATED | {"num_importance": 16, "theta_updates": 1},
    ("filippone2014_efficiency", "surr_ard"): SIMULATED | {"ard": True, "latents": "elliptical"},
    ("filippone2014_repeated", "aa_20"): SIMULATED | {"latent_updates": 20, "theta_updates": 20},
    ("filippone2014_real", "la_1"): REAL | {"approximation": "laplace", "num_importance": 1},
    ("filippone2014_real", "aa"): REAL | {"latent_updates": 10, "latents": "elliptical"},
    ("filippone2014_classification", "pm_ep"): REAL | {"approximation": "ep", "num_importance": 64},
    ("filippone2014_classification", "mcmc_ep"): REAL | {"sampler": "marginal", "approximation": "ep"},
}  # fmt: skip


CONSTANTS = {
    svm: {"PENALTIES": tuple(10.0**k for k in range(-2, 4)), "GAMMAS": tuple(10.0**k for k in range(-4, 2))},
    ipvi_dgp: {"FIRST_DECAY": 0.5},
    mcmc_svgp: {"FIXED": 300, "ACCEPTANCE": 0.8},
    tuning: {"RUNS": 30, "WALK": 0.25, "LANGEVIN": 0.57},
    sgld_ulisse: {"CONVERGED": 1e-8, "MOST_ITERATIONS": 10, "WINDOW": 100, "NOISE_RATIO": 0.002},
    cg_prior: {"TOLERANCE": 1e-8, "SOLVABLE": (1e1, 1e10)},
    preconditioners: {"JITTER": 1e-8, "OVERSAMPLING": 10, "POWER_STEPS": 1, "INNER_TOLERANCE": 1e-6, "SHIFT": 100.0},
    laplace: {"TOLERANCE": 1e-6, "MOST_STEPS": 50},
    approximations: {"TOLERANCE": 1e-4},
    pcn: {"WINDOW": 100, "TARGET": 0.3, "GROWTH": 1.25},
    inducing_priors: {"STRAUSS_GAMMA": 0.5, "STRAUSS_RADIUS": 0.5},
}


@pytest.mark.parametrize("module", CONSTANTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_settings_that_are_no_hyperparameters(module):
    assert {name: getattr(module, name) for name in CONSTANTS[module]} == CONSTANTS[module]


def test_step_sizes_are_tried_from_1e_4_to_a_third():
    assert tuning.LOG_STEP_SIZES[[0, -1]].tolist() == [-4.0, -0.5]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset):
    hyper = config.compose(CONF, "method", preset).hyper
    assert {key: getattr(hyper, key) for key in PRESETS[preset]} == PRESETS[preset]


@pytest.mark.parametrize(("study", "method"), STUDIES)
def test_studies(study, method):
    expected = STUDIES[study, method]
    cells = resolve(Places(REPOSITORY, REPOSITORY / "store"), study, "budget=paper").cells
    found = [cell.what.method.hyper for cell in cells if cell.method == method]
    assert [{key: hyper[key] for key in expected} for hyper in found] == len(found) * [expected] != []


def test_bounds_on_flights_are_of_100_mini_batches_of_50000_rows():
    """cutajar2017, figure 4."""
    budget = config.compose(CONF, "budget", "paper")
    assert (budget.bound_batches, budget.bound_rows) == (100, 50_000)


def test_the_schedule_of_random_features_counts_from_the_updates_of_the_paper():
    """12,000 (cutajar2017) and 4,000 iterations (its first version) with fixed covariance parameters."""
    steps = config.compose(CONF, "budget", "paper").steps["default"].small
    frozen = [config.compose(CONF, "method", f"dgp_rff_{year}").hyper.freeze_fraction for year in (2017, 2016)]
    assert [math.floor(part * steps) for part in frozen] == [12_000, 4_000]
