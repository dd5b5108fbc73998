"""What a process imports to fit: neither torch for closed forms, nor for the others what Lightning alone would want."""

import os
import subprocess
import sys

import pytest

from gpbench import config
from gpbench.data.prepare import prepare
from gpbench.places import Places
from projects import REPOSITORY

# fits methods on a data set in this very process, then fails with the names of modules that should not be there
FIT = """
import sys
from pathlib import Path
from gpbench import places
from gpbench.data import splits, table
from gpbench.study.commands import fit_one, job
from gpbench.study.fitting import children
where = places.find()
dataset, unwanted, *methods = sys.argv[1:]
for method in methods:
    (group,), _ = fit_one.groups(where, [f"method={method}", f"dataset={dataset}", "budget=smoke"])
    data = table.load(where.prepared_file(dataset), group.what.data.md5)
    module = children.entry(group.what)
    work = Path(method)
    work.mkdir()
    (outcome,) = module.run(group, splits.numbered_rows(group.what.protocol.splits, data), work)
    assert outcome.status == "done", outcome.reason
    module.save(outcome.model, work / module.MODEL_FILE)
found = {name for name in sys.modules if name in unwanted.split(",")}
sys.exit(f"{methods} imported {found}" if found else 0)
"""
NEEDLESS = ("torchmetrics", "torch._dynamo", "matplotlib", "scipy.signal", "scipy.stats", "sklearn", "sympy", "mlflow")


def python(program: str, *words: str, **environment: str) -> None:
    """Run a program; fail with what it says on standard error."""
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("dataset", "methods", "unwanted"),
    [
        ("wdbc", ("constant", "linear", "gradient_boosting", "svm", "simple_mkl"), ("torch", "lightning", "mlflow")),
        ("boston", ("pbp",), ("torch", "lightning", "mlflow")),
        ("boston", ("svgp", "dgp_rff", "bsgp_1"), NEEDLESS),
    ],
)
def test_a_fit_imports_what_it_needs(project, dataset, methods, unwanted):
    prepare(config.compose(project / "conf", "dataset", dataset), Places(project, project / "store"))
    python(FIT, dataset, ",".join(unwanted), *methods)


def test_every_closed_form_is_among_those_that_are_fitted_without_torch():
    conf = REPOSITORY / "conf"
    methods = [config.compose(conf, "method", name) for name in config.options(conf, "method")]
    families = {method.family for method in methods if method.header.closed_form and "predict" in method.header.kinds}
    assert families == {"constant", "linear", "gradient_boosting", "svm", "simple_mkl", "pbp"}


def test_a_lightning_that_takes_more_is_imported_with_all_that_it_takes(tmp_path):
    modules = {
        "torchmetrics.py": "class Metric: pass\nclass MetricCollection: pass\nclass Newcomer: pass\n",
        "lightning/__init__.py": "",
        "lightning/pytorch/__init__.py": (
            "from torchmetrics import Newcomer\nclass LightningModule: pass\nclass Trainer: pass\n"
        ),
        "lightning/pytorch/plugins/__init__.py": "",
        "lightning/pytorch/plugins/environments.py": "class LightningEnvironment: pass\n",
        "lightning/pytorch/trainer/connectors/callback_connector.py": "",
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    program = (
        "from gpbench.study.fitting import trimmed_lightning\nimport lightning.pytorch, torchmetrics\n"
        "assert lightning.pytorch.Newcomer is torchmetrics.Newcomer\n"
        "assert trimmed_lightning.Trainer is lightning.pytorch.Trainer"
    )
    python(program, PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY / "src")]))


def test_stand_ins_are_gone_once_lightning_is_imported():
    program = (
        "import sys\nfrom gpbench.study.fitting import trimmed_lightning\n"
        "assert not set(trimmed_lightning.STAND_INS) & set(sys.modules)\n"
        "assert 'lightning.pytorch.trainer.trainer' in sys.modules\n"
        "import torch._dynamo\nassert torch._dynamo.OptimizedModule.__module__.startswith('torch.')"
    )
    python(program)
