"""What the statistics of a study found, in sentences."""

from __future__ import annotations

from gpbench.errors import count
from gpbench.evaluation.practical import DECIDED, ROPES
from gpbench.report.tables.render import number
from gpbench.report.view import View

_OF = {"dataset": "method", "method": "data set"}


def to_markdown(found: dict, view: View) -> str:
    """The statistics in words, beneath what they rest on."""
    parts = ["# Statistics\n", f"{view.study['title']}. {basis(view)}\n"]
    for comparison in found["comparisons"].values():
        parts.append(f"## {comparison['title']}\n")
        parts += [f"- {sentence}" for sentence in sentences(comparison, view)]
        parts.append("")
    return "\n".join(parts)


def basis(view: View) -> str:
    """Protocol, budget, number of splits and commits of the finished fits, in a sentence."""
    commits = sorted(filter(None, view.done["commit"].dropna().astype(str).str[:7].unique()))
    made = f"fits of commit {', '.join(commits)}" if commits else "no commit is known"
    made += " with uncommitted changes" * bool(view.done["dirty"].eq(True).any())
    splits = count(view.fits["split"].nunique(), "split")
    return f"Protocol {view.study['protocol']}, budget {view.study['budget']}, {splits}; {made}."


def sentences(comparison: dict, view: View) -> list[str]:
    """What a comparison found, one sentence an item."""
    lines = [f"Left out, because not every cell is complete: {left_out(comparison, view)}."]
    lines = lines if comparison["dropped"] else []
    if "reason" in comparison:
        return [*lines, f"No ranks: {comparison['reason']}."]
    order = ", ".join(f"{view.labels[row['method']]} {row['mean_rank']:.2f}" for row in comparison["ranks"])
    lines.append(f"Mean ranks over {count(len(comparison['datasets']), 'data set')}: {order}.")
    if comparison["friedman"]:
        test = comparison["friedman"]
        lines.append(
            f"Friedman: chi-squared {number(test['chi_squared'])}, {p_value(test['p_chi_squared'])};"
            f" Iman-Davenport: {p_value(test['p_f'])}."
        )
    told = [f"{view.labels[p['a']]} and {view.labels[p['b']]}" for p in comparison["pairs"] if p["reject"]]
    pairs = count(len(comparison["pairs"]), "pair")
    verdict = f"{len(told)} of {pairs} differ: {'; '.join(told)}" if told else f"none of {pairs} is told apart"
    lines += [f"Wilcoxon signed rank with Holm's correction: {verdict}.", comparison["power"]]
    return [*lines, practically(comparison, view)]


def left_out(comparison: dict, view: View, reasons: bool = True) -> str:
    """Every dropped data set and method with how many of its cells are complete and, with `reasons`, why the others
    are not."""
    alike: dict[str, list[str]] = {}
    for row in comparison["dropped"]:
        why = "; ".join(f"{n} {reason}" for reason, n in row["reasons"].items())
        said = f": {row['complete']} of {count(row['cells'], _OF[row['kind']])} ({why})"
        name = view.labels.get(row["name"], row["name"])
        alike.setdefault(said if reasons else f" ({row['complete']}/{row['cells']})", []).append(name)
    return "; ".join(", ".join(names) + said for said, names in alike.items())


def practically(comparison: dict, view: View) -> str:
    """Which methods the first in mean rank is practically better than or equal to, by the Bayesian signed-rank test."""
    first = comparison["ranks"][0]["method"]
    found = {"a_better": [], "equal": [], "undecided": [], "b_better": []}
    for pair in comparison["bayes"]:
        if pair["a"] == first:
            found[pair["decision"]].append(view.labels[pair["b"]])
    words = {"a_better": "better than", "equal": "equal to", "b_better": "worse than", "undecided": "undecided against"}
    said = "; ".join(f"{words[key]} {', '.join(names)}" for key, names in found.items() if names)
    rope = ROPES[comparison["metric"]].said
    return (
        f"Bayesian signed rank, equal within {rope}, decided from {DECIDED:g} on: {view.labels[first]} is {said}"
        " (it was chosen as the first on the same data sets, for which nothing is corrected)."
    )


def p_value(p: float) -> str:
    """'p = 0.012', or 'p < 0.0001'."""
    return f"p = {number(p, 2)}" if p >= 1e-4 else "p < 0.0001"
