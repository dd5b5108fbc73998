"""`gpbench pyfunc FIT FOLDER`: a kept fit as a model of MLflow, `mlflow.pyfunc.load_model(FOLDER).predict(frame)`."""

import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from gpbench import config
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.commands import predict_csv


def write(where: Places, name: str, folder: Path) -> None:
    """Write a folder that holds the fit, the prepared data that it is scaled by, and conf/: no pickle, no path outside.

    Raises UserError for a fit without a model, for a folder that exists, and where not all of it can be written."""
    if folder.exists():
        raise UserError(f"{folder} exists; name a new folder")
    model = predict_csv.Model(where, name)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
        project = Places(Path(work) / "project", Path(work) / "project" / "store")
        prepared, fit_id = project.prepared_file(model.dataset.name), model.record.fit_id
        prepared.parent.mkdir(parents=True)
        try:
            shutil.copytree(where.conf, project.conf)
            for other in config.options(where.conf, "dataset").keys() - {model.dataset.name}:
                if config.compose(where.conf, "dataset", other).private:  # its columns concern nobody
                    (project.conf / "dataset" / f"{other}.yaml").unlink(missing_ok=True)
            shutil.copy2(where.prepared_file(model.dataset.name), prepared)
            shutil.copytree(model.store.folder(fit_id), project.store / fit_id)
            mlflow.pyfunc.save_model(
                Path(work) / "model",
                python_model=str(Path(__file__).with_name("pyfunc_model.py")),
                artifacts={"project": str(project.root)},
                signature=False,  # of frames, a type hint tells none
                pip_requirements=[f"gpbench=={metadata.version('gpbench')}"],
            )
            written = Path(work) / "model" / "MLmodel"  # which names where its parts came from
            text = written.read_text(encoding="utf-8").replace(f"{work}/", "").replace(f"{Path(__file__).parent}/", "")
            written.write_text(text, encoding="utf-8")
        except OSError as error:  # a shutil.Error lists every file of a folder
            reason = error.strerror or error.args[0][0][2]
            raise UserError(f"cannot write {folder}: {reason}; check free space and permissions") from error
        (Path(work) / "model").rename(folder)
