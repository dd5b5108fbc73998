"""Samplers against reference posteriors: `gpbench references NAME` scores finished chains, or draws from a CSV file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.data.simulated import posteriors
from gpbench.data.simulated.posteriors import Content
from gpbench.errors import UserError, count
from gpbench.evaluation.posteriors import compare, limit
from gpbench.places import Places
from gpbench.sampling.diagnostics import FEWEST_DRAWS
from gpbench.study.storage import arrays
from gpbench.study.storage.store import Store


def listing() -> list[str]:
    """A line for each reference posterior: model, unknowns, and how far its own chains can be trusted."""
    return [described(name, posteriors.read(name)) for name in posteriors.names()]


def described(name: str, found: Content) -> str:
    settings, values = found["settings"], found["quantities"].values()
    held = f" given {', '.join(found['held'])}" if found["held"] else ""
    drawn = f"{settings['chains']} x {settings['problem']['draws']} draws"
    return (
        f"{name}: {settings['problem']['likelihood']}, {len(found['y'])} rows, {len(values)} numbers{held}; {drawn}, "
        f"R-hat at most {max(value['r_hat'] for value in values):.4f}, bulk ESS at least "
        f"{min(value['ess_bulk'] for value in values):.0f}, {settings['divergent']} divergent"
    )


def scores(where: Places, name: str, table: Path | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """The sampler and a row for each number it shares with the reference: of a CSV file, or of the chains in the store.

    Raises UserError where there is nothing to score."""
    found = posteriors.read(name)
    drawn = {str(table): of_csv(table, found)} if table else of_store(Store(where.store), name, found)
    for sampler, draws in drawn.items():
        rows = {number: compare(values, found["quantities"][number]) for number, values in draws.items()}
        yield sampler, pd.DataFrame.from_dict(rows, orient="index").rename_axis("number").reset_index()


def of_csv(path: Path, found: Content) -> dict[str, np.ndarray]:
    """Number -> draws `[chains, T]` of a table with a column a number, `psi[0]` or `log lengthscale`, and perhaps one
    `chain`."""
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read draws from {path}: {error}") from error
    chains = [part for _, part in table.groupby("chain")] if "chain" in table else [table]
    known = _known([str(column) for column in table], found, f"{path} has columns")
    for column in known.values():
        if not pd.api.types.is_numeric_dtype(table[column]) or not np.isfinite(table[column]).all():
            raise UserError(f"{path}: column {column!r} holds what is no finite number")
    shortest = min(map(len, chains))
    if shortest < FEWEST_DRAWS:
        raise UserError(f"{path}: a chain has {count(shortest, 'draw')}, fewer than {FEWEST_DRAWS}")
    return {number: np.stack([part[column][:shortest] for part in chains]) for number, column in known.items()}


def of_store(store: Store, name: str, found: Content) -> dict[str, dict[str, np.ndarray]]:
    """Draws of each sampler whose fits of kind `sample` on the data set of the reference are done: sampler -> number ->
    `[chains, T]`, at most 500 a chain."""
    dataset, chains = posteriors.PREFIX + name, dict[str, list[dict[str, np.ndarray]]]()
    if name not in posteriors.whole():
        raise UserError(f"{name} holds a part of its unknowns, which no data set does; give draws by --draws FILE.csv")
    for record in store.records()[0]:
        if record.address.dataset == dataset and record.status == "done" and record.what.kind == "sample":
            if not (other := _other_model(record.what.method.hyper, found)):
                store.verified(record.fit_id)
                label = f"{record.label} ({record.address.budget}, {record.what.steps} steps)"
                chains.setdefault(label, []).append(arrays.read(store.folder(record.fit_id), "chain"))
            else:
                print(f"{record.fit_id} ({record.label}) is left out: its {other} is not that of {name}")
    if not chains:
        command = f"snakemake --cores 2 --config study=posteriors overrides='datasets=[{dataset}]'"
        make = f"run `{command}`, or give --draws FILE.csv"
        raise UserError(f"no finished chain on {dataset} with the model of {name} in {store.root}; {make}")
    drawn = {}
    for label, parts in chains.items():
        known = _known(parts[0]["names"].tolist(), found, f"{label} samples")
        places = {number: parts[0]["names"].tolist().index(column) for number, column in known.items()}
        shortest = min(len(part["every"]) for part in parts)
        drawn[label] = {
            number: np.stack([part["every"][:shortest, place].astype(float) for part in parts])
            for number, place in places.items()
        }
    return drawn


def _known(columns: list[str], found: Content, said: str) -> dict[str, str]:
    """Number of the reference -> the column that holds it."""
    labels = posteriors.labels(found)
    names = {number: (number, labels.get(number, number)) for number in found["quantities"]}
    known = {number: column for number, both in names.items() for column in both if column in columns}
    if not known:
        wanted = ", ".join(list(found["quantities"])[:3])
        raise UserError(f"{said} {', '.join(columns[:5])}, none of which is one of {wanted}, ...")
    return known


def _other_model(hyper: Mapping[str, object], found: Content) -> str:
    """The first setting by which a method's model is another one than the reference's; empty where there is none.

    Settings that a method does not have are not compared."""
    problem, inputs, called = found["settings"]["problem"], len(found["x"][0]), posteriors.labels(found).values()
    (_, shape, rate), (law, scale_shape, scale_rate) = problem["lengthscale"], problem["variance"]
    wanted = {
        "likelihood": problem["likelihood"],
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
    own = {"lengthscale_rate": inputs**-0.5} | {key: value for key, value in hyper.items() if value is not None}
    for key, value in wanted.items():
        close = isinstance(value, float) and isinstance(own.get(key), int | float) and math.isclose(value, own[key])
        if key in hyper and value != own.get(key) and not close:
            return key
    return ""


def lines(sampler: str, rows: pd.DataFrame) -> list[str]:
    """What the scores of a sampler say: the worst of all numbers, then each of psi."""
    z, ratio = rows.loc[rows["z"].abs().idxmax()], rows.loc[(rows["sd_ratio"] - 1).abs().idxmax()]
    bound = limit(len(rows))
    said = [
        f"{sampler}: {len(rows)} numbers, {'agrees' if abs(z['z']) <= bound else 'differs'}: largest |z| of a mean "
        f"{abs(z['z']):.2f} ({z['number']}; {bound:.2f} is exceeded by chance once in a hundred comparisons), sd ratio "
        f"furthest from 1 {ratio['sd_ratio']:.3f} ± {ratio['sd_ratio_error']:.3f} ({ratio['number']}), R-hat at most "
        f"{rows['r_hat'].max():.3f}, bulk ESS at least {rows['ess_bulk'].min():.0f}"
    ]
    for row in rows[rows["number"].str.startswith("psi")].itertuples():
        known = f", W {row.wasserstein:.3f} sd ({row.wasserstein_noise:.3f} by chance)"
        apart = "" if math.isnan(row.wasserstein) else known
        said.append(f"  {row.number}: z {row.z:+.2f}, sd ratio {row.sd_ratio:.3f} ± {row.sd_ratio_error:.3f}{apart}")
    return said
