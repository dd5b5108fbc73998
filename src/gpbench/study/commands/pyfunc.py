"""`gpbench pyfunc FIT FOLDER`: a kept fit as a model of MLflow, `mlflow.pyfunc.load_model(FOLDER).predict(frame)`."""

import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.commands import predict_csv


def write(where: Places, name: str, folder: Path) -> None:
    """Write a folder that holds the fit, the prepared data that it is scaled by, and conf/: no pickle, no path outside.

    Raises UserError for a fit without a model, and for a folder that exists."""
    if folder.exists():
        raise UserError(f"{folder} exists; name a new folder")
    model = predict_csv.Model(where, name)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow

    with tempfile.TemporaryDirectory() as work:
        project = Places(Path(work) / "project", Path(work) / "project" / "store")
        prepared, fit_id = project.prepared_file(model.dataset.name), model.record.fit_id
        prepared.parent.mkdir(parents=True)
        shutil.copy2(where.prepared_file(model.dataset.name), prepared)
        shutil.copytree(where.conf, project.conf)
        shutil.copytree(model.store.folder(fit_id), project.store / fit_id)
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"project": str(project.root)},
            signature=False,  # of frames, a type hint tells none
            pip_requirements=[f"gpbench=={metadata.version('gpbench')}"],
        )
