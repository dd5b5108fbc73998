"""The words of a study as types, and their JSON: everything that planning, fitting, storing and collecting hand on.

    What       what a fit is: hashed into its identity          Group  fits that share one tensor batch
    Cell       method x data set x protocol, with its fits      Batch  the groups of one job
    Fit        one split and replica of a cell                  FitRecord  fit.json of a finished fit

Nothing else reads or writes these files. JSON that does not fit a type is refused by one line that names the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpbench.config.schema import Kind, Study, Task, Trainer
from gpbench.config.validate import T, adapter
from gpbench.data.splits import Blocks, FrozenProtocol, KFold
from gpbench.errors import UserError


def canonical(content: object) -> str:
    """JSON text that is the same for equal content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def digest(content: object, length: int = 16) -> str:
    """First hexadecimal digits of the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:length]


def identify(what: Mapping[str, Any], split: int, replica: int) -> str:
    """Identity of a fit, of the fields of its `What`; `tune` counts only where there is one: older names stay."""
    counted = {key: value for key, value in what.items() if key != "tune" or value}
    return digest([digest(counted), split, replica])


Setting = bool | int | float | str | list[Any] | None
"""Value of a hyperparameter in JSON."""


@dataclass(frozen=True)
class MethodSettings:
    """Module of a method and all of its hyperparameters."""

    module: str
    hyper: dict[str, Setting]


@dataclass(frozen=True)
class PreparedData:
    """A data set by the md5 of its prepared arrays; classes: their number, 0 where the task has none."""

    md5: str | None
    task: Task
    images: bool
    classes: int


@dataclass(frozen=True)
class Tuning:
    """What a fit tries before it is made: settings of hyperparameters, each on the same inner split of the training
    rows, whose first fold validates."""

    candidates: tuple[dict[str, Setting], ...]
    inner: KFold


@dataclass(frozen=True)
class What:
    """What the fits of a cell are, all of it hashed; steps are None for closed forms, and the most
    where a fit ends once it has converged.

    trained_by: closed_form, or the scheme of the updates. code: module -> digest, of the numerics that a fit uses;
    versions: of the packages that those import."""

    kind: Kind
    method: MethodSettings
    data: PreparedData
    protocol: FrozenProtocol
    steps: int | None
    until_converged: bool
    dtype: str
    noise_block: int
    trained_by: str
    workers: int
    code: dict[str, str]
    versions: dict[str, str]
    tune: Tuning | None = None

    @property
    def configuration(self) -> str:
        """Digest of all but code and versions."""
        return digest(asdict(replace(self, code={}, versions={})))

    @property
    def trainings(self) -> int:
        """How often a fit is trained: once, and once for each setting that it tries."""
        return 1 + (len(self.tune.candidates) if self.tune else 0)

    @property
    def is_final(self) -> bool:
        """Whether a fit that predicts trains on all rows, and holds none out for a test (`split=all`)."""
        return self.kind == "predict" and isinstance(self.protocol.splits, Blocks)

    def with_settings(self, settings: Mapping[str, Setting]) -> What:
        """The same with other hyperparameters, and nothing more to try."""
        method = replace(self.method, hyper=self.method.hyper | dict(settings))
        return replace(self, method=method, tune=None)


@dataclass(frozen=True)
class Address:
    """How people call a cell."""

    method: str
    dataset: str
    protocol: str
    budget: str
    overrides: str


@dataclass(frozen=True)
class Fit:
    """One split and replica of a cell, with its numbers of training and test rows."""

    fit_id: str
    split: int
    replica: int
    rows: int
    test_rows: int


@dataclass(frozen=True)
class Reported:
    """What a protocol's source prints: names of metrics, and the spread beside a mean over splits."""

    metrics: list[str]
    spread: str


@dataclass(frozen=True)
class Cost:
    """What a method declares of the cost of a step: seconds at 500 rows of 10 columns, their growth, operations."""

    seconds_per_step: float
    rows_power: float
    operations_per_layer: int | None = None


@dataclass(frozen=True)
class Planned:
    """What a cell, a group of its fits and the record of each fit have in common: what is fitted, and how.

    rows: of training, those of split 0 in a cell and of the first fit in a group; how: the trainer."""

    address: Address
    label: str
    family: str
    rows: int
    what: What
    how: Trainer

    @property
    def cores(self) -> int:
        """Of a fit, while it runs."""
        return self.how.threads * self.what.workers


@dataclass(frozen=True)
class Cell(Planned):
    """Method x data set x protocol of a study; impossible ones carry the reason in `skip`.

    method: the study's name for it, `settings` what the study sets of it (of a variant); r_hat, gain: limits of the
    budget; test_rows: of split 0; sampler: whether its fits are Markov chains."""

    method: str
    settings: dict[str, Setting]
    reported: Reported
    r_hat: float | None
    gain: float | None
    test_rows: int
    cost: Cost
    sampler: bool
    skip: str
    fits: tuple[Fit, ...]


@dataclass(frozen=True)
class Group(Planned):
    """Fits of a cell that share one tensor batch, as they were planned."""

    group_id: str
    fits: tuple[Fit, ...]

    def has_its_fits(self) -> bool:
        """Whether its fits are identified by its settings."""
        what = asdict(self.what)
        return all(identify(what, fit.split, fit.replica) == fit.fit_id for fit in self.fits)


@dataclass(frozen=True)
class Batch:
    """What one job runs; seconds: those that are predicted; requested: when, in ISO 8601."""

    batch_id: str
    groups: tuple[Group, ...]
    seconds: float
    requested: str = ""


@dataclass(frozen=True)
class FrozenPlan:
    """plans/NAME.json: a study as it was resolved; command: what makes it again."""

    name: str
    command: str
    study: Study
    cells: tuple[Cell, ...]

    @property
    def fits(self) -> list[tuple[Cell, Fit]]:
        """Everything that the study wants."""
        return [(cell, fit) for cell in self.cells for fit in cell.fits]


@dataclass(frozen=True)
class Seconds:
    """Seconds of a fit; where `shared_by` fits rode in one batch, training is that of the batch divided by them."""

    train: float = 0.0
    predict: float = 0.0
    shared_by: int = 1


@dataclass(frozen=True)
class Commit:
    """Git commit of the project, and whether its files differ from it (`provenance.commit`); empty without git."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Machine:
    """Processor, cores, system and Python."""

    processor: str
    cores: int | None
    system: str
    python: str


@dataclass(frozen=True)
class Provenance(Machine, Commit):
    """Where a fit comes from; never part of its identity. adopted: how its evidence was carried over, if it was; job:
    its number on a cluster; gpu: the name of the one that it ran on, empty of a CPU."""

    started: str
    ended: str
    adopted: str = ""
    host: str = ""
    job: str = ""
    gpu: str = ""


@dataclass(frozen=True)
class Scored:
    """Scores of a fit, and how its own chain has mixed if it has one; code: digest of the code that made them."""

    code: str
    scores: dict[str, float]
    mixing: dict[str, float]


@dataclass(frozen=True)
class FitRecord(Planned):
    """fit.json: how a fit ended, what and how it was; scored: as it ended, None where it has no score; sealed: file ->
    SHA-256 (see `gpbench.study.storage.seals`)."""

    fit_id: str
    split: int
    replica: int
    status: str
    reason: str
    seconds: Seconds
    peak_memory_mb: float
    provenance: Provenance
    info: dict[str, Any] = field(default_factory=dict)
    scored: Scored | None = None
    sealed: dict[str, str] = field(kw_only=True)

    @property
    def fitted(self) -> What:
        """`what` with the settings that were chosen, where it was tuned."""
        return self.what.with_settings(self.info["tuned"]) if self.what.tune else self.what

    @classmethod
    def of(cls, planned: Planned, fit: Fit, **ended: Any) -> FitRecord:
        """The record of a fit of a cell or group; `ended`: the fields from `status` on."""
        common = {f.name: getattr(planned, f.name) for f in fields(Planned)} | {"rows": fit.rows}
        return cls(**common, fit_id=fit.fit_id, split=fit.split, replica=fit.replica, sealed={}, **ended)


@dataclass(frozen=True)
class Progress:
    """Progress of a running group; objective: of each of its fits; at_most: whether it may end before `steps`."""

    step: int
    steps: int
    seconds: float
    objective: list[float]
    at_most: bool = False


CONVERGENCE = ("convergence", "gain", "not_judged_because", "steps_done")
"""What a fit by gradients notes of its convergence."""

JITTER = ("jitter_times", "jitter_largest", "jitter_matrices")
"""What a fit notes where Cholesky factors of its steps or its prediction needed jitter beyond the method's own."""


def convergence_in_words(noted: Mapping[str, Any]) -> str:
    """'converged', 'still improving (about 0.1 nats)' or 'not judged (why)' of what a fit noted; '' of others."""
    status = noted.get("convergence") or ""
    detail = f"about {noted['gain']:.2g} nats" if status == "still improving" else noted.get("not_judged_because")
    return f"{status} ({detail})" if detail else status


class OtherEdition(UserError):
    """A file that another edition of gpbench wrote."""


def to_json(record: object) -> str:
    """Text of a record; NaN and infinity are kept as JavaScript writes them."""
    return json.dumps(asdict(record), indent=1)  # type: ignore[call-overload]


def from_json(cls: type[T], text: str | bytes, where: Path | str) -> T:
    """A record from its text (UTF-8); `where` is what messages call it.

    Raises OtherEdition where it has some of today's fields and not all, UserError where it is damaged."""
    return of_content(cls, parsed(text, where), where)


def parsed(text: str | bytes, where: Path | str) -> Any:
    """What JSON text says. Raises UserError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged ({error})") from error


def of_content(cls: type[T], content: Any, where: Path | str) -> T:
    """A record from what its text says; errors as of `from_json`."""
    try:
        record: T = adapter(cls).validate_python(content)  # type: ignore[arg-type]
        return record
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(content, dict) and any(f.name in content for f in fields(cls)):  # type: ignore[arg-type]
        raise OtherEdition(f"{where} was written by another edition of gpbench ({reason}); use another store")
    raise UserError(f"{where} is damaged ({reason})")
