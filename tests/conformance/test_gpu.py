"""On a GPU every method keeps its contracts and gives what a CPU gives; skipped where there is none (`make gpu`)."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
from contracts import CONTRACTS
from test_device import ITERATIVE

from cases import CONF, SPLITS, Case, assert_close, every_case, group
from gpbench.methods.base import GradientMethod
from gpbench.study.fitting import lightning_module, loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that this build of PyTorch knows")

COMPILED = ["svgp", "dsvi", "aep"]
MAGNIFIED = {"sgld_ulisse": 1e-3}
"""Relative differences of scores where solves end early, by a residual that rounding has moved (8e-5 on an H100)."""
COPIES = 2
"""Constants that a step may copy to the device: of two layers of a Bayesian network, the prior."""


@pytest.fixture(scope="module", params=every_case(CONF), ids="-".join)
def case(request, tmp_path_factory):
    return Case(*request.param, tmp_path_factory, few=True, device="cuda")


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_contract(case, contract):
    contract(case)


@pytest.fixture
def draws_of_the_host(monkeypatch):
    """Noise of a CPU's generators, copied to the device, whose own differ."""

    def on_host(draw):
        def drawn(*sizes, device=None, **words):
            return draw(*sizes, **words).to(device or "cpu")

        return drawn

    class OnHost(torch.Generator):
        def __new__(cls, device=None):
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", OnHost)
    for name in ("randn", "randint", "randperm"):
        monkeypatch.setattr(torch, name, on_host(getattr(torch, name)))


def test_a_gpu_gives_what_a_cpu_gives(case, draws_of_the_host, tmp_path_factory):
    """Sums are rounded in another order, which steps magnify: as where the training rows are permuted."""
    on_host = Case(case.name, case.task, tmp_path_factory, few=True)
    for one, other in zip(case.fit(group(case.cell, *range(SPLITS))), on_host.together, strict=True):
        assert_close(one, other, relative=MAGNIFIED.get(case.name, 1e-6))


def test_a_step_hardly_waits_for_the_device(case, monkeypatch):
    """Once to see whether all is finite, as `test_device` counts it, and for constants that are copied there."""
    method, rows = case.method, [len(case.fold.train)]
    if not isinstance(method, GradientMethod) or case.name in ITERATIVE or method.has_own_steps():
        pytest.skip("test_device says why")
    if loop.advanced_by(method, rows) != "adam":
        pytest.skip("a line search looks at every value")
    waits = []
    advance = lightning_module.GradientFit.advance

    def watched(fit, batch, noise, step):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return advance(fit, batch, noise, step)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                waits.append(sum("synchronizing" in str(warning.message) for warning in caught))

    monkeypatch.setattr(lightning_module.GradientFit, "advance", watched)
    case.fit(group(case.cell, *range(SPLITS)))
    assert 1 <= min(waits[1:]) <= max(waits[1:]) <= 1 + COPIES, waits


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_loss_gives_the_same(name, tmp_path_factory):
    """By CUDA graphs, on the same draws."""
    plain = Case(name, "regression", tmp_path_factory, few=True, device="cuda")
    compiled = plain.fit(group(plain.cell, *range(SPLITS), compile=True))
    for one, other in zip(compiled, plain.together, strict=True):
        assert_close(one, other, relative=1e-6)


@pytest.mark.parametrize("method", ["svgp", "dsvi", "bsgp_1", "mcmc_gp", "gp_pcg", "gradient_boosting"])
def test_a_fit_of_the_command_line_names_its_gpu(method, project):
    """In a process that has started no CUDA, as the child of a job is forked; one in closed form has none."""
    dataset = "wdbc" if method == "mcmc_gp" else "diabetes"
    words = ["fit", f"method={method}", f"dataset={dataset}", "budget=smoke", "trainer=gpu"]
    done = subprocess.run([sys.executable, "-m", "gpbench.cli", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (record,) = project.glob("store/*/fit.json")
    name = "" if method == "gradient_boosting" else torch.cuda.get_device_name()
    assert json.loads(record.read_text())["provenance"]["gpu"] == name
