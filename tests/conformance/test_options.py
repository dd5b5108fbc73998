"""Options of some methods keep the contracts too: kernels of their own, softmax, what is sampled and how, ..."""

import pytest
from contracts import (
    batched_is_looped,
    learning_beats_the_constant_predictor,
    permuting_test_rows_permutes_predictions,
    permuting_training_rows_changes_nothing,
    resumed_is_uninterrupted,
    single_precision_is_close,
)

from cases import Case

OPTIONS = [
    ("svgp", "regression", {"ard": False, "separate": "kernels", "natural_gradients": "all"}),
    ("svgp", "multiclass", {"separate": "all", "multiclass": "softmax", "natural_gradients": "all"}),
    ("svgp", "regression", {"covariance": "diagonal", "inducing_start": "greedy", "noise": "each"}),
    ("svgp", "binary", {"coordinates": "inducing", "inducing_start": "rows", "fixed": "inducing_inputs"}),
    # so short that the kernel matrix of the inducing inputs, with which v is u, enlarges no rounding of a processor
    (
        "dsvi",
        "multiclass",
        {"covariance": "diagonal", "coordinates": "inducing", "fixed": "kernel", "lengthscale": 0.5},
    ),
    ("dsvi", "regression", {"separate": "all", "natural_gradients": "all"}),
    ("dsvi", "multiclass", {"ard": False, "separate": "kernels", "multiclass": "softmax", "samples_train": 2}),
    ("dsvi", "regression", {"layer_noise_variance": 0.0}),
    ("student_t_gp", "regression", {"noise": "each"}),
    ("dnn", "regression", {"input_dropout": True, "samples_test": 20, "prior_lengthscale": 0.1}),
    ("aep", "regression", {"batch_size": 1000, "mean_function": "linear", "power": 0.5}),
    ("aep", "binary", {"batch_size": 1000, "ard": False, "separate": "kernels", "layers": 1}),
    ("bsgp_1", "regression", {"sampled": "u", "objective": "vfe", "optimise_every": 2, "window": 5}),
    ("bsgp_1", "binary", {"prior": "dpp"}),
    ("ipvi_dgp_1", "regression", {"layers": 2}),
    ("mcmc_gp", "binary", {"sampler": "sa", "latents": "hmc_v1", "ard": True, "leapfrogs": 2}),
    ("mcmc_gp", "binary", {"sampler": "asis", "latents": "smmala", "theta": "smmala"}),
    ("mcmc_gp", "binary", {"sampler": "surr", "latents": "elliptical", "theta_updates": 2, "walk": "adapted"}),
    ("mcmc_gp", "binary", {"sampler": "khr", "latents": "none"}),
    ("mcmc_gp", "binary", {"sampler": "hmc", "latents": "none", "ard": True}),
    ("mcmc_gp_counts", "counts", {"sampler": "nuts", "latents": "none", "doublings": 3}),
    ("mcmc_gp", "binary", {"sampler": "pm", "latents": "mh_v2", "num_importance": 4, "variance_prior": "gamma"}),
    ("mcmc_gp", "binary", {"sampler": "marginal", "latents": "none", "kernel": "matern52 * periodic"}),
    ("stride", "regression", {"hidden": "aca", "rank": 12, "layers": 3}),
    ("stride", "regression", {"hidden": "sparse", "layers": 3}),
    ("stride", "regression", {"hidden": "full", "layers": 3, "architecture": "convolution"}),
    ("stride", "regression", {"hidden": "aca", "architecture": "convolution", "rank": 12, "objective": "bound"}),
    ("stride", "regression", {"hidden": "sparse", "architecture": "convolution"}),
    ("mcmc_gp_counts", "counts", {"latents": "mh_v1", "outputscale": 2.0}),
]


@pytest.fixture(
    scope="module", params=OPTIONS, ids=lambda option: f"{option[0]}-{'-'.join(map(str, option[2].values()))}"
)
def case(request, tmp_path_factory):
    name, task, options = request.param
    return Case(name, task, tmp_path_factory, hyper=options, few=True)


CONTRACTS = [
    learning_beats_the_constant_predictor,
    batched_is_looped,
    resumed_is_uninterrupted,
    single_precision_is_close,
    permuting_test_rows_permutes_predictions,
    permuting_training_rows_changes_nothing,
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.slow
def test_contract(case, contract):
    contract(case)
