"""Random-feature deep GP: settings that are refused, and the published presets."""

import pytest

from cases import CONF
from gpbench import config
from gpbench.methods.dgp_rff import Hyperparameters

SOFTMAX = "the softmax likelihood is for binary or multiclass data, not regression"
IMPOSSIBLE = [
    ({"feed_forward": True, "hidden_layers": 0}, "regression", "feed_forward needs a hidden layer, hidden_layers is 0"),
    ({"likelihood": "gaussian"}, "binary", "the gaussian likelihood is for regression data, not binary"),
    ({"likelihood": "bernoulli"}, "multiclass", "the bernoulli likelihood is for binary data, not multiclass"),
    ({"likelihood": "softmax"}, "regression", SOFTMAX),
    ({"likelihood": "softmax"}, "binary", ""),
    ({"likelihood": "gaussian"}, "regression", ""),
    ({"feed_forward": True}, "multiclass", ""),
]


@pytest.mark.parametrize(("hyper", "task", "reason"), IMPOSSIBLE)
def test_settings_that_fit_no_data_say_why(hyper, task, reason):
    assert Hyperparameters(**hyper).impossible(task) == reason


REFUSED = {
    "no features": ("boston", ["num_features=0"], ["num_features", "greater than or equal to 1", "given: 0"]),
    "negative features": ("boston", ["num_features=-3"], ["num_features", "greater than or equal to 1", "given: -3"]),
    "unknown kernel": ("boston", ["kernel=foo"], ["kernel", "'rbf' or 'arc_cosine'", "'foo'"]),
    "nothing to feed forward to": (
        "boston",
        ["hidden_layers=0", "feed_forward=true"],
        ["dgp_rff on boston: feed_forward needs a hidden layer"],
    ),
    "likelihood of another task": (
        "wdbc",
        ["likelihood=gaussian"],
        ["dgp_rff on wdbc: the gaussian likelihood is for regression data, not binary"],
    ),
    "too many layers": ("boston", ["hidden_layers=31"], ["hidden_layers", "less than or equal to 30", "given: 31"]),
}


@pytest.mark.parametrize(("dataset", "settings", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_settings_are_refused_in_one_line(gpbench, dataset, settings, said):
    answer = gpbench("fit", "method=dgp_rff", f"dataset={dataset}", *(f"method.{word}" for word in settings))
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1), answer.err
    for part in ("gpbench: ", *said):
        assert part in answer.err


# section 4.1 of cutajar2017, sections 3.1 and 3.2 of its first version; freezing as a part of 20,000 updates
PUBLISHED = {
    "dgp_rff_2017": {
        "kernel": "rbf",
        "frequencies": "var_fixed",
        "hidden_width": 3,
        "num_features": 100,
        "batch_size": 200,
        "learning_rate": 0.01,
        "samples_train": 1,
        "samples_late": 100,
        "samples_test": 100,
        "freeze_fraction": 12_000 / 20_000,
        "freeze_frequencies": False,
        "freeze_noise": True,
    },
    "dgp_rff_2016": {
        "kernel": "rbf",
        "frequencies": "var_resampled",
        "hidden_width": 3,
        "num_features": 100,
        "batch_size": 100,
        "learning_rate": 0.01,
        "samples_train": 100,
        "samples_late": 100,
        "samples_test": 100,
        "freeze_fraction": 4_000 / 20_000,
        "freeze_frequencies": True,
        "freeze_noise": True,
    },
    "dgp_rff_2016_binary": {"likelihood": "softmax", "frequencies": "var_resampled", "samples_train": 100},
    "dgp_rff_2017_binary": {"likelihood": "softmax", "batch_size": 200, "num_features": 100},
    "dgp_rff_2017_images": {
        "frequencies": "var_fixed",
        "hidden_width": 50,
        "num_features": 500,
        "batch_size": 1000,
        "learning_rate": 0.001,
    },
    "dgp_rff_2016_images": {
        "frequencies": "var_resampled",
        "hidden_width": 40,
        "num_features": 500,
        "learning_rate": 0.001,
        "samples_train": 100,
    },
    "dgp_rff_2017_airline": {
        "hidden_layers": 2,
        "num_features": 100,
        "hidden_width": 3,
        "feed_forward": True,
        "likelihood": "softmax",
        "batch_size": 1000,
        "learning_rate": 0.001,
    },
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_hold_the_published_values(preset):
    hyper = config.compose(CONF, "method", preset).hyper
    assert {key: getattr(hyper, key) for key in PUBLISHED[preset]} == PUBLISHED[preset]
