"""Samplers against reference posteriors: `gpbench references NAME` scores finished chains, or draws from a CSV file."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.data.readers import formats
from gpbench.data.simulated import posteriors
from gpbench.data.simulated.posteriors import Content
from gpbench.errors import UserError, count
from gpbench.evaluation.posteriors import compare, limit
from gpbench.places import Places
from gpbench.sampling.diagnostics import FEWEST_DRAWS
from gpbench.study.records import FitRecord, What, to_json
from gpbench.study.storage import arrays
from gpbench.study.storage.store import Store

LARGEST = 1e100  # of a draw: its square must be finite
LARGEST_R_HAT, LEAST_ESS = 1.05, 100.0
"""Beyond these a Monte Carlo error is itself too uncertain to judge by."""


def listing() -> list[str]:
    """A line for each reference posterior: model, unknowns, and how far its own chains can be trusted."""
    return [described(name, posteriors.read(name)) for name in posteriors.names()]


def described(name: str, content: Content) -> str:
    settings, values = content["settings"], content["quantities"].values()
    held = f" given {', '.join(content['held'])}" if content["held"] else ""
    drawn = f"{settings['chains']} x {settings['problem']['draws']} draws"
    return (
        f"{name}: {settings['problem']['likelihood']}, {len(content['y'])} rows, {len(values)} numbers{held}; {drawn}, "
        f"R-hat at most {max(value['r_hat'] for value in values):.4f}, bulk ESS at least "
        f"{min(value['ess_bulk'] for value in values):.0f}, {settings['divergent']} divergent"
    )


def scores(where: Places, name: str, table: Path | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """The sampler and a row for each number it shares with the reference: of a CSV file, or of the chains in the store.

    Raises UserError where there is nothing to score."""
    content = posteriors.read(name)
    drawn = {str(table): of_csv(table, content)} if table else of_store(Store(where.store), name, content)
    for sampler, draws in drawn.items():
        rows = {number: compare(values, content["quantities"][number]) for number, values in draws.items()}
        yield sampler, pd.DataFrame.from_dict(rows, orient="index").rename_axis("number").reset_index()


def of_csv(path: Path, content: Content) -> dict[str, np.ndarray]:
    """Number -> draws `[chains, T]` of a table: columns `psi[0]` or `log lengthscale`, and perhaps one `chain`."""
    table = formats.frame(path)
    if "chain" in table and table["chain"].isna().any():
        raise UserError(f"{path}: column 'chain' has empty cells")
    chains = [part for _, part in table.groupby("chain")] if "chain" in table else [table]
    known = _known([str(column) for column in table], content)
    if table.empty:
        raise UserError(f"{path} has no draws below its header")
    if not known:
        raise UserError(f"{path} has columns {', '.join(map(str, table.columns[:5]))}, {_wanted(content)}")
    for column in known.values():
        values = table[column]
        numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        if not numeric or not (values.abs() < LARGEST).all():
            raise UserError(f"{path}: column {column!r} holds what is not a finite number, or one beyond {LARGEST:g}")
    if unknown := [str(column) for column in table if column not in {"chain", *known.values()}]:
        print(f"{path}: {', '.join(unknown[:5])} {'are' if len(unknown) > 1 else 'is'} no number of the reference")
    for number, label in posteriors.labels(content).items():
        if number in table and label in table and number != label:
            raise UserError(f"{path}: columns {number!r} and {label!r} are the same number; leave one out")
    shortest = min(map(len, chains))
    if shortest < FEWEST_DRAWS:
        raise UserError(f"{path}: a chain has {count(shortest, 'draw')}, fewer than {FEWEST_DRAWS}")
    if (used := shortest * len(chains)) < len(table):
        print(f"{path}: {used} of {len(table)} draws are used: every chain is cut to {shortest}, the shortest")
    return {number: np.stack([part[column][:shortest] for part in chains]) for number, column in known.items()}


def of_store(store: Store, name: str, content: Content) -> dict[str, dict[str, np.ndarray]]:
    """Draws of done fits of kind `sample` on the reference's data: sampler -> number -> `[chains, T]`, 500 at most."""
    dataset, chains = posteriors.PREFIX + name, dict[tuple[str, str], list[dict[str, np.ndarray]]]()
    if name not in posteriors.whole():
        raise UserError(f"{name} holds a part of its unknowns, which no data set does; give draws by --draws FILE.csv")
    settings: dict[tuple[str, str], str] = {}
    for record in store.records()[0]:
        if record.address.dataset != dataset or record.status != "done" or record.what.kind != "sample":
            continue
        store.verified(record.fit_id)
        chain = arrays.read(store.folder(record.fit_id), "chain")
        if reason := _unlike(record, chain, content):
            print(f"{record.fit_id} ({record.label}) is left out: {reason}")
            continue
        key = f"{record.label} ({record.address.budget}, {record.what.steps} steps)", to_json(record.what.method)
        chains.setdefault(key, []).append(chain)
        settings[key] = record.address.overrides
    if not chains:
        command = f"snakemake --cores 2 --config study=posteriors overrides='datasets=[{dataset}]'"
        make = f"run `{command}`, or give --draws FILE.csv"
        raise UserError(f"no finished chain on {dataset} with the model of {name} in {store.root}; {make}")
    alike = Counter(label for label, _ in chains)
    drawn = {}
    for (label, hyper), parts in chains.items():
        names = parts[0]["names"].tolist()
        places = {number: names.index(column) for number, column in _known(names, content).items()}
        shortest = min(len(part["every"]) for part in parts)
        sampler = f"{label}: {settings[label, hyper] or 'as it is configured'}" if alike[label] > 1 else label
        drawn[sampler] = {
            number: np.stack([part["every"][:shortest, place].astype(float) for part in parts])
            for number, place in places.items()
        }
    return drawn


def _unlike(record: FitRecord, chain: Mapping[str, np.ndarray], content: Content) -> str:
    """Why a chain is not one of the reference's posterior, or cannot be compared with it; '' where it is one."""
    if other := _other_model(record.what.method.hyper, content) or _other_data(record.what, content):
        return f"its {other} is not that of the reference"
    if not _known(chain["names"].tolist(), content):
        return f"it samples {', '.join(chain['names'].tolist()[:5])}, {_wanted(content)}"
    drawn = len(chain["every"])
    return f"it has {count(drawn, 'draw')}, fewer than {FEWEST_DRAWS}" if drawn < FEWEST_DRAWS else ""


def _known(columns: list[str], content: Content) -> dict[str, str]:
    """Number of the reference -> the column that holds it."""
    labels = posteriors.labels(content)
    names = {number: (number, labels.get(number, number)) for number in content["quantities"]}
    return {number: column for number, both in names.items() for column in both if column in columns}


def _wanted(content: Content) -> str:
    return f"none of which is one of {', '.join(list(content['quantities'])[:3])}, ..."


def _other_data(what: What, content: Content) -> str:
    """Which part of a protocol makes other data of the reference's: its scaling, or its number of training rows."""
    if {what.protocol.inputs, what.protocol.targets} != {"as they are"}:
        return "scaling"
    return "number of rows" if getattr(what.protocol.splits, "train", None) != len(content["y"]) else ""


def _other_model(hyper: Mapping[str, object], content: Content) -> str:
    """The first setting by which a method's model is another one than the reference's; empty where there is none.

    Settings that a method does not have are not compared; without likelihood and priors its model is another one."""
    if not {"likelihood", "rate"} & hyper.keys():
        return "model"
    problem, inputs, called = content["settings"]["problem"], len(content["x"][0]), posteriors.labels(content).values()
    (_, shape, rate), (law, scale_shape, scale_rate) = problem["lengthscale"], problem["variance"]
    wanted = {
        "likelihood": problem["likelihood"],
        "kernel": "rbf",
        "ard": "log tau 1" in called or "log lengthscale 1" in called,
        "shape": shape,  # of regression, where sigma, lambda and tau have one prior
        "rate": rate,
        "lengthscale_shape": shape,
        "lengthscale_rate": rate,
        "variance_prior": law.replace(" ", "_"),
        "variance_shape": scale_shape,
        "variance_rate": scale_rate,
        "outputscale": None,
    }
    given = {"lengthscale_rate": inputs**-0.5} | {key: value for key, value in hyper.items() if value is not None}
    for key, value in wanted.items():
        close = isinstance(value, float) and isinstance(given.get(key), int | float) and math.isclose(value, given[key])
        if key in hyper and value != given.get(key) and not close:
            return key
    return ""


def lines(sampler: str, rows: pd.DataFrame) -> list[str]:
    """What the scores of a sampler say: the worst of all numbers, then each of psi. Means and sds are judged alike."""
    z, spread = rows["z"].abs(), ((rows["sd_ratio"] - 1) / rows["sd_ratio_error"]).abs()
    z, spread = z.fillna(math.inf), spread.fillna(math.inf)  # of a number that never moved
    bound, r_hat, ess = limit(2 * len(rows)), rows["r_hat"].max(skipna=False), rows["ess_bulk"].min(skipna=False)
    verdict = "agrees" if max(z.max(), spread.max()) <= bound else "differs"
    if not (r_hat <= LARGEST_R_HAT and ess >= LEAST_ESS):
        verdict = f"too short to tell (R-hat must be at most {LARGEST_R_HAT}, bulk ESS at least {LEAST_ESS:.0f})"
    mean, sd = rows.loc[z.idxmax()], rows.loc[spread.idxmax()]
    texts = [
        f"{sampler}: {len(rows)} numbers, {verdict}: largest |z| of a mean {z.max():.2f} ({mean['number']}), of an sd "
        f"{spread.max():.2f} ({sd['number']}, ratio {sd['sd_ratio']:.3f} ± {sd['sd_ratio_error']:.3f}); {bound:.2f} is "
        f"exceeded by chance once in a hundred comparisons; R-hat at most {r_hat:.3f}, bulk ESS at least {ess:.0f}"
    ]
    for row in rows[rows["number"].str.startswith("psi")].itertuples():
        known = f", W {row.wasserstein:.3f} sd ({row.wasserstein_noise:.3f} by chance)"
        apart = "" if math.isnan(row.wasserstein) else known
        texts.append(f"  {row.number}: z {row.z:+.2f}, sd ratio {row.sd_ratio:.3f} ± {row.sd_ratio_error:.3f}{apart}")
    return texts
