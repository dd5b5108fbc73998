"""Methods as scikit-learn estimators: fits of arrays in memory, by the code that fits cells. Nothing is stored."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from gpbench import config, places
from gpbench.config.schema import Dataset, Source, Task
from gpbench.data.table import UNVARYING, Table, check, unvarying
from gpbench.errors import UserError
from gpbench.study.commands.fit_one import ALL_ROWS
from gpbench.study.commands.predict_csv import require_finite, unreal
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import make_fold
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import Setup, configured_method, make_cell

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gpbench.study.records import Cell

Settings = Mapping[str, Any] | None
Seed = int | np.random.RandomState | None


class _Estimator(BaseEstimator):
    """method: a name of conf/method; settings: its hyperparameters that differ from there; budget: a name of
    conf/budget; random_state: number of the random streams; None or a generator: drawn."""

    def __init__(
        self, method: str = "exact_gp", settings: Settings = None, budget: str = "quick", random_state: Seed = 0
    ) -> None:
        self.method = method
        self.settings = settings
        self.budget = budget
        self.random_state = random_state

    def _validated(self, x: ArrayLike, *targets: ArrayLike, **options: Any) -> Any:
        """What `validate_data` makes of arrays, in float64; ValueError also for times, which it would take."""
        validated = validate_data(self, x, *targets, dtype=np.float64, **options)
        for name, array in (("X", x), *(("y", y) for y in targets)):  # as given: what was validated has lost its mask
            if odd := unreal(array):
                raise ValueError(f"{name}, {odd}")
        return validated

    def _learn(self, x: np.ndarray, targets: np.ndarray, task: Task, classes: list[str]) -> Self:
        names = [f"x{i}" for i in range(x.shape[1])], [f"y{i}" for i in range(targets.shape[1])]
        table = Table(x, targets, *names)
        check(table, "arrays", task, len(classes))
        source = Source("table", names[1])
        rows, columns = x.shape
        dataset = Dataset("arrays", "arrays", task, source, table.md5, rows, columns, private=True, classes=classes)
        cell = self._cell(dataset)
        fitting, (fit,) = entry(cell.what), cell.fits
        with tempfile.TemporaryDirectory() as work:
            (outcome,) = fitting.run(group_of(cell, (fit,), fit.rows), table, Path(work))
            if outcome.status != "done":
                raise UserError(f"{self.method} is {outcome.status}: {outcome.reason}")
            path = Path(work) / fitting.MODEL_FILE
            fitting.save(outcome.model, path)
            self.model_ = path.read_bytes()
        fold = make_fold(cell.what, table, fit.split, fit.replica)
        self.what_, self.scaling_, self.key_ = cell.what, fold.scaling, fold.key
        return self

    def _cell(self, dataset: Dataset) -> Cell:
        """The one cell, of one fit, that trains on every row; UserError where the method cannot."""
        conf = places.find().conf
        rules = ("outputs=all", *(f"splits.{key}={value}" for key, value in ALL_ROWS.items()))
        protocol = config.compose(conf, "protocol", "common", rules)
        words = ("methods=[constant]", "datasets=[diabetes]", "splits=1", "replicas=1")
        study, trainer = config.compose(conf, "study", "default", words), config.compose(conf, "trainer", "cpu")
        budget = config.compose(conf, "budget", self.budget)
        if not isinstance(self.settings, Mapping | None):
            raise UserError(f"settings must be a dict such as {{'steps': 50}}, not {self.settings!r}")
        settings = [f"{key}={config.setting(v)}" for key, v in (self.settings or {}).items()]
        config.require_option(conf, "method", self.method)
        method = configured_method(places.find(), self.method, budget, settings)
        cell = make_cell(Setup(study, protocol, budget, trainer), method, dataset, settings)
        if cell.skip:
            raise UserError(f"{self.method} cannot be fitted to these arrays: {cell.skip}")
        drawn, number = check_random_state(self.random_state), self.random_state
        replica = int(number) if isinstance(number, Integral) else drawn.randint(2**31)
        return dataclasses.replace(cell, fits=(dataclasses.replace(cell.fits[0], replica=replica),))

    def _answer(self, x: ArrayLike) -> Any:
        """Predictive of inputs `[T, D]`, of targets in scaled units."""
        check_is_fitted(self, "model_")
        inputs = self._validated(x, reset=False)
        fitting = entry(self.what_)
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / fitting.MODEL_FILE
            path.write_bytes(self.model_)
            return fitting.answer(self.what_, path, self.scaling_.inputs(inputs), self.key_)


class GPBenchRegressor(RegressorMixin, _Estimator):
    """A regression method: `GPBenchRegressor("dsvi", {"layers": 3}).fit(X, y).predict(X, return_std=True)`."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs X `[n, D]` and targets y `[n]` or `[n, P]`, which are standardised inside.

        Raises ValueError for arrays that are none, UserError for a method or setting that does not fit."""
        self.__dict__.pop("model_", None)  # of before, if this fit fails
        x, y = self._validated(X, y, y_numeric=True, multi_output=True, ensure_min_samples=2)
        targets = np.asarray(y, float)
        self.flat_ = targets.ndim == 1
        if unvarying(targets):
            warnings.warn(f"a target {UNVARYING}", UserWarning, stacklevel=2)
        return self._learn(x, targets.reshape(len(x), -1), "regression", [])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive means of X `[T, D]` in the units of y; with `return_std` also the sds of new targets."""
        predictive = self._answer(X).affine(self.scaling_.y_scale, self.scaling_.y_shift)
        mean, sd = predictive.mean(), np.sqrt(predictive.variance())
        require_finite(np.hstack([mean, sd]))
        if self.flat_:
            mean, sd = mean[:, 0], sd[:, 0]
        return (mean, sd) if return_std else mean


class GPBenchClassifier(ClassifierMixin, _Estimator):
    """A classification method: `GPBenchClassifier("svgp").fit(X, y).predict_proba(X)`."""

    def __init__(
        self, method: str = "svgp", settings: Settings = None, budget: str = "quick", random_state: Seed = 0
    ) -> None:
        super().__init__(method, settings, budget, random_state)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs X `[n, D]` and labels y `[n]` of two classes or more.

        Raises ValueError for arrays that are none, UserError for a method or setting that does not fit."""
        self.__dict__.pop("model_", None)
        x, y = self._validated(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class ({self.classes_[0]}); a classifier needs two or more")
        task: Task = "binary" if type_of_target(numbers) == "binary" else "multiclass"
        return self._learn(x, numbers[:, None], task, [str(name) for name in self.classes_])

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities `[T, C]` of the classes, in the order of `classes_`."""
        probabilities = np.asarray(self._answer(X).probabilities())
        require_finite(probabilities)
        return probabilities

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of every row of X `[T, D]`."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])
