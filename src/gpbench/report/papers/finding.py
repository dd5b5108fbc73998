"""The page of a paper, docs/papers/PAPER.md: its claims, printed numbers and errors beside what committed records say.

Only the finding, the claims, the deviations and the explanations are written by hand (`published/claims/PAPER.yaml`).
"""

import re
from collections import Counter
from pathlib import Path
from textwrap import fill

import pandas as pd

from gpbench import config
from gpbench.config.evidence import Claim, Evidence
from gpbench.errors import count
from gpbench.evaluation.compare import PairedDifference
from gpbench.evaluation.metrics import METRICS
from gpbench.report.papers import claims
from gpbench.report.papers.claims import OURS, UNDECIDED, Result
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.all_runs import by_verdict, runs_table
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.one_run import NUMBERS, show
from gpbench.report.tables.render import Table, number, signed, to_markdown
from gpbench.report.view import View, commits

DIFFERENCE = "first - second [95 %]"
COUNTS_NOTE = "Every number with its counterpart, and what a verdict means: [scorecard](../scorecard/scorecard.md)."
MANY = 5  # data sets that a finding names one by one, if they tell anything
VERDICTS_NOTE = (
    "A comparison (-: none) is of two methods on a data set; a verdict is that of those judged. In brackets: how many "
    "have which result and budget. Not significant: the data do not decide, as one split never does; not judged: fits "
    "failed or have not converged; not run: none is recorded. A signed-rank p, and intervals above, are not corrected."
)
RULES = (
    "Difference of the metric (MNLL in nats, RMSE in the unit of the target, times in seconds, % in percentage points) "
    "paired over splits (< and > are the claim), with its Nadeau-Bengio interval, not corrected for the number of "
    "comparisons; of samplers over the simulated data sets, or on a single one over its chains, so that it is of this "
    "one alone. p, by Holm's correction over the comparisons of a claim under one protocol, decides; of =, ≤ and ≥ the "
    "interval and the margin of the scorecard. The rules are those of `gpbench.report.papers.claims`. A result holds "
    "at the budget beside it. At most: its chains have not mixed, or are short, and too many draws count."
)


def pages(root: Path, card: pd.DataFrame, runs: list[Counterparts]) -> dict[str, str]:
    """Citation key -> page, for every file of published/claims; card: the scorecard, with '' where it has no text."""
    papers = claims.read(root / "published" / "claims", root / "conf", card)
    errata = (root / "docs" / "errata.md").read_text(encoding="utf-8") if papers else ""
    return {
        key: page(key, evidence, card[card["source"] == key], runs, root / "conf", _errata(errata, key))
        for key, evidence in papers.items()
    }


def bullets(ours: list[Claim], runs: list[Counterparts], conf: Path) -> str:
    """Our findings as a list: each sentence, its conditions, and on which data sets it holds, with the differences."""
    lines = []
    for claim in ours:
        results = claims.judge(claim, runs, conf)
        kinds = {kind: [r for r in results if r.kind == kind] for kind in dict.fromkeys(r.kind for r in results)}
        by_dataset = (f"{kind} on {_datasets(same, 1 if kind == UNDECIDED else MANY)}" for kind, same in kinds.items())
        judged = "; ".join([*claims.over_datasets(results), *by_dataset])
        pairs = [r.difference.n for r in results if r.difference]
        names = sorted({run.view.folder.name for r in results for run in r.runs})
        known = names[:1] + [name.replace(f"{names[0]}-", "-", 1) for name in names[1:]]  # of one study
        known += [f"{min(pairs)} to " * (min(pairs) < max(pairs)) + count(max(pairs), "split")] if pairs else []
        # a line that begins with a minus would be an item of its own
        text = f"- **{claim.claim}** {claim.where}: {judged} ({', '.join(known)}).".replace(" - ", "\0- ")
        lines.append(fill(text, 120, subsequent_indent="  ", break_on_hyphens=False).replace("\0", " "))
    return "\n".join(lines) + "\n"


def _datasets(results: list[Result], most: int) -> str:
    """'yacht +0.43 [+0.31, +0.55], ...', or of many data sets how many, and between which they lie."""
    means = [_of_metric(r.comparison.metric, r.difference)[0] for r in results if r.difference]
    if len(results) > most and len(means) == len(results):
        return f"{len(results)} data sets ({min(means):+.2f} to {max(means):+.2f})"
    pairs = [(r.dataset, r.comparison.metric, r.difference) for r in results]
    return ", ".join(f"{name} {signed(*_of_metric(metric, d), 2)}" if d else name for name, metric, d in pairs)


def _of_metric(metric: str, d: PairedDifference) -> tuple[float, float, float]:
    """The difference (first - second) of the metric itself, from that of losses, and its interval."""
    return (-d.mean, -d.upper, -d.lower) if _is_gain(metric) else (d.mean, d.lower, d.upper)


def _is_gain(metric: str) -> bool:
    return METRICS[metric].direction == "max"


def page(key: str, evidence: Evidence, card: pd.DataFrame, runs: list[Counterparts], conf: Path, errata: str) -> str:
    """The page of one paper; card: its rows of the scorecard, errata: its section of docs/errata.md."""
    judged = [claims.judge(claim, runs, conf) for claim in evidence.claims]
    names = {run.view.folder.name for results in judged for r in results for run in r.runs} | set(card["run"])
    # solvers on systems, say, have neither claims by split nor printed numbers
    names |= {*re.findall(r"[\w-]+", " ".join([evidence.finding, *(claim.untested for claim in evidence.claims)]))}
    used = {run.view.folder.name: run.view for run in runs if run.view.folder.name in names}
    code = [
        f"- Paper: {d.paper}. Program: {d.code}. Printed by: {d.printed_by} ({d.shown_by})."
        for d in evidence.deviations
    ]
    views, counts = [used[name] for name in sorted(used)], by_verdict(card, "item").reset_index()
    lines = [
        f"# {config.compose(conf, 'paper', key).title} ({key})\n",
        f"Made by `make docs` from `published/claims/{key}.yaml`, `published/{key}.csv` and committed runs; "
        "figures and tables by name are in [papers.md](../papers.md).\n",
        f"## Finding of {evidence.date}\n\n{evidence.finding.strip()}\n",
        *_newer(evidence, views),
        "## Claims\n",
        *_claims(evidence, judged),
        *_commands(judged),
        "## Printed numbers\n",
        to_markdown(Table(counts, counts, "Printed numbers by item and verdict")),
        f"{COUNTS_NOTE}\n",
        *_passed(card, used),
        "## Worse or different\n",
        *_explained(evidence, card),
        *(["## Public code\n", *code, ""] if code else []),
        f"## Errata\n\n{errata}",
        "## Runs that this page uses\n",
        to_markdown(runs_table(views)) if views else "None is committed yet.\n",
    ]
    return "\n".join(lines)


def _newer(evidence: Evidence, views: list[View]) -> list[str]:
    """A warning where fits ended after the finding was written."""
    last = {view.folder.name: str(view.done["ended"].max())[:10] for view in views if len(view.done)}
    newer = [f"{name} ({day})" for name, day in last.items() if day > evidence.date]
    text = f"**The finding is older than its evidence**: {', '.join(newer)}. The tables below are current.\n"
    return [text] if newer else []


def _claims(evidence: Evidence, judged: list[list[Result]]) -> list[str]:
    """The claims with their verdict under both protocols, then every difference behind them."""
    rows, differences = [], []
    for i, (claim, results) in enumerate(zip(evidence.claims, judged, strict=True), 1):
        paper, ours = map(claims.described, claims.by_protocol(results))
        rows.append([i, claim.claim, claim.where, paper if results else f"untested: {claim.untested}", ours])
        differences += [[i, *_difference(result)] for result in results if result.difference]
    head = ["no.", "claim", "where", "the paper's protocol", f"protocol {OURS}"]
    parts = [to_markdown(Table.of(rows, head, _headline(judged), VERDICTS_NOTE))]
    if differences:
        columns = ["no.", "protocol", "data set", "methods", "metric", DIFFERENCE, "p", "pairs", "result", "evidence"]
        parts.append(to_markdown(Table.of(differences, columns, "Differences behind the claims", RULES)))
    return [*parts, *_not_judged(judged)]


def _not_judged(judged: list[list[Result]]) -> list[str]:
    """A bullet for each comparison of a run that is not judged, with its data sets and the first reason."""
    alike: dict[str, list[Result]] = {}
    for i, results in enumerate(judged, 1):
        for result in (r for r in results if r.kind == claims.NOT_JUDGED):
            text = f"- {i}: {_relation(result)}, {METRICS[result.comparison.metric].label} ({_evidence(result)})"
            alike.setdefault(text, []).append(result)
    lines = [f"{text}: {', '.join(r.dataset for r in same)}: {same[0].reason}" for text, same in alike.items()]
    head = "Not judged, by claim (of several data sets the first reason; N of M are splits):\n"
    return [head, *lines, ""] if lines else []


def _relation(result: Result) -> str:
    """'DSVI-2 < SGP 100' of a loss, 'AA > SURR' of effective draws, by the labels of the run."""
    sign = {"better": "<", "equal": "=", "not worse": "≤"}[result.comparison.expect]
    sign = sign.translate(str.maketrans("<≤", ">≥")) if _is_gain(result.comparison.metric) else sign
    return f" {sign} ".join(result.labels)


def _evidence(result: Result) -> str:
    """'RUN and RUN, budget converged and paper'."""
    names = dict.fromkeys(run.view.folder.name for run in result.runs)
    return f"{' and '.join(names)}, budget {claims.budget_of(result)}"


def _headline(judged: list[list[Result]]) -> str:
    """How many claims have which verdict under either protocol."""
    texts = []
    for place, name in enumerate(("the paper's protocol", f"protocol {OURS}")):
        parts = (claims.by_protocol(results)[place] for results in judged)
        kinds = Counter(claims.verdict(part) for part in parts if part)
        numbers = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        of = f"of {count(kinds.total(), 'claim')} with comparisons"
        texts.append(f"under {name}, {of}: {numbers}" if kinds else f"no comparison under {name}")
    return f"Claims; {'; '.join(texts)}"


def _difference(result: Result) -> list[str]:
    d, metric = result.difference, result.comparison.metric
    assert d
    cells = [result.protocol, result.dataset, _relation(result), METRICS[metric].label]
    sides = list(zip(result.runs, result.comparison.methods, strict=True))
    behind = "".join(f" ({run.view.labels.get(name, name)}: at most)" for run, name in sides if name == result.behind)
    cells += [signed(*_of_metric(metric, d)), number(result.p, 2), str(d.n), result.kind + behind]
    of_dataset = [(run.view.done[run.view.done["dataset"] == result.dataset], method) for run, method in sides]
    fits = pd.concat([done[done["method"] == method] for done, method in of_dataset])
    return [*cells, f"{_evidence(result)}, commit {', '.join(commits(fits, 7, mark_dirty=True)) or 'unknown'}"]


def _commands(judged: list[list[Result]]) -> list[str]:
    """The commands that make what was not run."""
    lacking = [r for results in judged for r in results if r.kind == claims.NOT_RUN]
    studies = sorted({study for result in lacking for study in result.comparison.studies[-1:]})
    lines = [f"- `snakemake --cores 2 --config study={study}`" for study in studies]
    return ["Not run yet:\n", *lines, ""] if lines else []


def _passed(card: pd.DataFrame, views: dict[str, View]) -> list[str]:
    """Where training passes a printed number on its way to a better one, for runs whose traces are kept."""
    rows = []
    for row in card[card["verdict"] == "better"].to_dict("records"):
        view, metric = views[row["run"]], row["ours_metric"]
        fits = view.done[(view.done["dataset"] == row["dataset"]) & (view.done["method"] == row["ours_method"])]
        traces = view.traces[view.traces["fit_id"].isin(fits["fit_id"])]
        kept = traces.pivot_table(metric, "step", "fit_id").dropna() if metric in traces else pd.DataFrame()
        past = METRICS[metric].loss(kept.mean(axis=1)) <= METRICS[metric].loss(row["published"])
        if past.any() and not past.iloc[0]:
            cells = [*(row[key] for key in ("item", "dataset", "method_printed")), METRICS[metric].label]
            rows.append([*cells, number(row["published"]), f"{past.idxmax():g} of {past.index[-1]:g}", row["run"]])
    columns = ["item", "data set", "method", "metric", "published", "first passed at step", "run"]
    note = "Of numbers judged better: where the mean score of our splits, at steps that all reach, is first as good."
    return [to_markdown(Table.of(rows, columns, "Printed numbers that training passes", note))] if rows else []


def _explained(evidence: Evidence, card: pd.DataFrame) -> list[str]:
    """The rows that are worse or differ, below their explanations, then those that have none."""
    left = card[card["verdict"].isin(["worse", "differs"])]
    if left.empty:
        total = by_verdict(card, "source").sum()
        n = count(int(total[list(verdicts.JUDGED)].sum()), "judged number")
        return [f"Of {n} ({total['inconclusive']} inconclusive) none is worse than printed or differs.\n"]
    parts = [f"{NUMBERS}\n"]
    for explanation in evidence.explanations:
        rows = claims.rows_of(explanation, left)
        if len(rows):
            parts.append(f"{explanation.why} Shown by: {explanation.shown_by}\n\n{_rows(rows)}")
            left = left.drop(rows.index)
    return [*parts, f"**Open**: without an explanation.\n\n{_rows(left)}"] if len(left) else parts


def _rows(rows: pd.DataFrame) -> str:
    """A bullet for each row of the scorecard."""
    shown = show(rows).to_dict("records")
    where = zip(rows["item"], shown, rows["verdict"], rows["ours_budget"], rows["run"], strict=True)
    return "".join(
        f"- {item}, {s['data set']}, {s['method']}, {s['metric']}: {s['published']} printed, {s['ours']} ours, "
        f"{verdict} {f'at budget {budget} ({run})' if run else '(our data set)'}\n"
        for item, s, verdict, budget, run in where
    )


def _errata(text: str, key: str) -> str:
    """The section of docs/errata.md about a paper, without its proofs."""
    section = re.search(rf"^## {key}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\|.*\|$", section[1], re.MULTILINE) if section else []
    # a cell holds no bar; the last is the proof
    table = "\n".join(f"{line.rpartition('|')[0].rpartition('|')[0]}|" for line in lines)
    return f"{table}\n\nProofs: [errata.md](../errata.md).\n" if lines else "None noticed.\n"
