"""Predictions that somebody else made for rows of ours, as rows and points beside those of a study's fits.

    challengers/NAME/about.json                          label, protocol, digests of the file and of what it predicts
    challengers/NAME/DATASET/SPLIT/facts.json            what metrics ask besides points
    challengers/NAME/DATASET/SPLIT/points.parquet        as of a fit
    challengers/NAME/DATASET/SPLIT/scores.json           every metric, made again where the metrics change

`gpbench challenge` checks, scores and writes them. They are methods of the studies that name them in `challengers`,
marked by their label as not ours, and paired with ours split by split.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpbench import config
from gpbench.config import schema
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.records import Cell, Fit, FrozenPlan, FrozenProtocol, digest, from_json
from gpbench.study.storage.committed import Row

ABOUT, FACTS, SCORES, POINTS = "about.json", "facts.json", "scores.json", "points.parquet"
NOT_OURS = PRINTED, FAMILY = "published", "challenger"
"""Families of scores that others made: in print, split by split, and in `gpbench challenge`."""
REMEDY = "delete the folder of its challenger, and `gpbench challenge` it again"


def what_is_predicted(md5: str | None, protocol: FrozenProtocol) -> str:
    """Digest of what is predicted: the rows of a data set, and how a protocol splits and scales them."""
    return digest([md5, asdict(protocol)])


@dataclass(frozen=True)
class About:
    """What is known of a challenger: file is the digest of its predictions, of: data set -> `what_is_predicted`."""

    label: str
    protocol: str
    file: str
    of: dict[str, str]


def about(where: Places, name: str) -> About:
    """What is known of a challenger; UserError where there is none of this name."""
    known = [path.parent.name for path in sorted(where.challengers.glob(f"*/{ABOUT}"))]
    config.require_known("challenger", [name], known, "challengers/, to which `gpbench challenge` adds")
    path = where.challengers / name / ABOUT
    try:
        return from_json(About, path.read_bytes(), path)
    except (UserError, OSError) as error:
        raise UserError(f"{path} is damaged or of an earlier edition ({error}); {REMEDY}") from error


def check(where: Places, study: schema.Study) -> None:
    """Refuse challengers that do not exist, share a label or a method's name, or have another protocol or data sets."""
    called: dict[str, str] = {}
    for name in study.challengers:
        challenger = about(where, name)
        if (other := called.setdefault(challenger.label, name)) != name:
            raise UserError(f"challengers {other!r} and {name!r} have one label; add one of them by another --label")
        if (theirs := challenger.protocol) != study.protocol:
            raise UserError(f"challenger {name!r} predicts splits of protocol {theirs!r}, not {study.protocol!r}")
        if name in study.methods:
            raise UserError(f"challenger {name!r} is called as a method of the study; add it by another --name")
        if not any((where.challengers / name / dataset).is_dir() for dataset in study.datasets):
            datasets = ", ".join(study.datasets)
            raise UserError(f"challenger {name!r} predicts none of {datasets}; name its in datasets=[]")


def check_rows(where: Places, names: Iterable[str], cells: Iterable[Cell]) -> None:
    """Refuse challengers whose predictions are of other rows, splits or scaling than the fits beside them."""
    ours = {cell.address.dataset: cell.what for cell in cells if not cell.skip}
    for name in names:
        for dataset, theirs in about(where, name).of.items():
            if (what := ours.get(dataset)) and theirs != what_is_predicted(what.data.md5, what.protocol):
                other = f"the rows, splits or scaling of {dataset} are not those that {name!r} predicted"
                raise UserError(f"{other}; {REMEDY}")


def folders(where: Places, plan: FrozenPlan) -> dict[str, Path]:
    """What stands for a fit's identity -> folder, of the challengers' splits that the study fits too."""
    for name in plan.study.challengers:
        about(where, name)  # which is gone or damaged is named
    places = sorted({(cell.address.dataset, fit.split) for cell, fit in plan.fits if not cell.skip})
    named = [f"{name}/{dataset}/{split}" for name in plan.study.challengers for dataset, split in places]
    return {identity: path for identity in named if (path := where.challengers / identity).is_dir()}


def rows(where: Places, plan: FrozenPlan, scores: Callable[[Path], dict[str, float]]) -> list[Row]:
    """A row of scores for every one of `folders`; scores: of the predictions in a folder."""
    cells = {(cell.address.dataset, fit.split): (cell, fit) for cell, fit in plan.fits if not cell.skip}
    scored: list[Row] = []
    for identity, path in folders(where, plan).items():
        name, dataset, split = identity.split("/")
        names = {"method": name, "family": FAMILY, "label": f"{about(where, name).label} (not ours)"}
        scored.append(row(identity, *cells[dataset, int(split)], names) | scores(path))
    return scored


def row(identity: str, cell: Cell, fit: Fit, names: dict[str, str]) -> Row:
    """What a row says of a split of others besides its scores; names: method, family and label."""
    what = {"kind": cell.what.kind, "task": cell.what.data.task, "n_train": fit.rows, "n_test": fit.test_rows}
    address = {key: getattr(cell.address, key) for key in ("dataset", "protocol", "budget")}
    state = {"overrides": "", "split": fit.split, "replica": 0, "status": "done", "reason": ""}
    return {"fit_id": identity} | what | names | {"preset": names["method"]} | address | state
