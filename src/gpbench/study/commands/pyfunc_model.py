"""The Python function that MLflow loads from a folder of `gpbench pyfunc`; MLflow runs a copy of this file."""

from pathlib import Path

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext

from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.commands import predict_csv
from gpbench.study.storage.store import Store


class KeptModel(PythonModel):
    """A kept fit: a frame of inputs or an array in, the columns of `gpbench predict` out."""

    def load_context(self, context: PythonModelContext) -> None:
        root = Path(context.artifacts["project"])
        (fit,), (prepared,) = (root / "store").iterdir(), (root / "data" / "prepared").iterdir()
        if fault := Store(root / "store").fault(fit.name):
            raise UserError(f"{fault}; write the model again by `gpbench pyfunc`")
        self.model = predict_csv.Model(Places(root, root / "store"), fit.name, prepared.stem)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> pd.DataFrame:
        """Mean, sd and quantiles, or class probabilities, of every row, in original units."""
        return self.model.predict_table(model_input)


mlflow.models.set_model(KeptModel())
