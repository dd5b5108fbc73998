"""Steps of GPflow and GPflux, run by `.peers` for `steps.py`: `python bench/gpflow_steps.py float64`.

Reads lines `number name`, does the work of that name so often and answers the seconds of the processor that it took.
Graphs are compiled by `tf.function` (not by XLA), on one thread; a work is built, and traced, when it is first named.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import gpflow
import numpy as np
import tensorflow as tf
from gpflux.architectures import Config, build_constant_input_dim_deep_gp

NUM_INDUCING, DIM, BATCH, ROWS, SAMPLES = 100, 8, 1000, 4000, 100
JITTER = {"float64": 1e-6, "float32": 1e-4}


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((count, DIM)).astype(gpflow.default_float())
    return x, np.sin(x).sum(1, keepdims=True)


def kernel() -> Any:
    return gpflow.kernels.SquaredExponential(lengthscales=[DIM**0.5] * DIM)


def training(loss: Callable[[], Any], model: Any) -> Callable[[], Any]:
    """A step of Adam on all that the model trains."""
    adam = tf.keras.optimizers.Adam(0.01, jit_compile=False)

    @tf.function(jit_compile=False)
    def step() -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(model.trainable_variables)
            value = loss()
        trained = model.trainable_variables
        adam.apply_gradients(zip(tape.gradient(value, trained), trained, strict=True))
        return value

    return step


def deep_gp() -> Any:
    """Two layers as GPflux's own architecture makes them: outputs share the kernel and the inducing inputs."""
    settings = Config(NUM_INDUCING, inner_layer_qsqrt_factor=1e-5, likelihood_noise_variance=0.05)
    return build_constant_input_dim_deep_gp(rows(ROWS)[0], 2, settings)


def dsvi() -> Callable[[], Any]:
    model, (x, y) = deep_gp(), map(tf.constant, rows(BATCH))
    trained = tf.Module()  # a deep GP of GPflux does not find its own variables
    trained.parts = [*model.f_layers, model.likelihood_layer]
    return training(lambda: -model.elbo((x, y)), trained)


def svgp() -> Callable[[], Any]:
    (x, y), likelihood = map(tf.constant, rows(BATCH)), gpflow.likelihoods.Gaussian(0.05)
    model = gpflow.models.SVGP(kernel(), likelihood, rows(NUM_INDUCING)[0], num_data=ROWS)
    return training(lambda: model.training_loss((x, y)), model)


def sgpr() -> Callable[[], Any]:
    model = gpflow.models.SGPR(rows(1000), kernel(), rows(NUM_INDUCING)[0], noise_variance=0.1)
    return training(model.training_loss, model)


def exact_gp() -> Callable[[], Any]:
    model = gpflow.models.GPR(rows(1000), kernel(), noise_variance=0.1)
    return training(model.training_loss, model)


def predict() -> Callable[[], Any]:
    """Means and variances of y at 1,000 rows, by a sample of the hidden layer after the other."""
    model, x = deep_gp(), tf.constant(rows(1000)[0])

    @tf.function(jit_compile=False)
    def sample() -> tuple[Any, Any]:
        mean, variance = model.predict_f(x)
        return mean, variance + model.likelihood_layer.likelihood.variance

    return lambda: [sample() for _ in range(SAMPLES)]


WORKS = {"DSVI-2": dsvi, "SVGP": svgp, "SGPR": sgpr, "exact GP": exact_gp, "predict": predict}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    gpflow.config.set_default_float(np.dtype(sys.argv[1]).type)
    gpflow.config.set_default_jitter(JITTER[sys.argv[1]])
    tf.keras.backend.set_floatx(sys.argv[1])
    tf.random.set_seed(0)
    built: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        times, name = line.strip().split(" ", 1)
        if name not in built:
            built[name] = WORKS[name]()
            built[name]()
        start = time.process_time()
        for _ in range(int(times)):
            built[name]()
        print(time.process_time() - start, file=answers, flush=True)


if __name__ == "__main__":
    main()
