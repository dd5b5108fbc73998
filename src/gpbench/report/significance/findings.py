"""The statistics of a study in sentences."""

from gpbench import config
from gpbench.errors import count
from gpbench.evaluation.compare import min_datasets
from gpbench.evaluation.practical import DECIDED, ROPES
from gpbench.report.tables.render import escape_markdown, number
from gpbench.report.view import View, commits

MOST_NAMED = 3  # commits
BY_CHANCE = "among seven or more that differ by chance alone it is better than about a quarter of the others"
_OF = {"dataset": "method", "method": "data set"}
WORDS = {"a_better": "better than", "equal": "equal to", "undecided": "undecided versus", "b_better": "worse than"}


def to_markdown(results: dict, view: View) -> str:
    """The results of `comparisons.statistics` in sentences, below the setting of the study."""
    head = " ".join(filter(None, (f"{view.study['title']}. {basis(view)}", view.warning)))
    parts = ["# Statistics\n", f"{escape_markdown(head)}\n"]
    for comparison in results["comparisons"].values():
        parts.append(f"## {comparison['title']}\n")
        parts += [f"- {escape_markdown(sentence)}" for sentence in sentences(comparison, view)]
        parts.append("")
    return "\n".join(parts)


def basis(view: View) -> str:
    """One sentence with protocol, budget, number of splits, overrides and commits of the finished fits."""
    known = commits(view.done, 7)
    code = f"fits of commit {', '.join(known)}" if known else "commit unknown" if len(view.done) else "no fit done"
    code = f"fits of {len(known)} commits" if len(known) > MOST_NAMED else code
    code += " with uncommitted changes" * bool(view.done["dirty"].eq(True).any())
    _, words = config.command_words(view.study["command"])
    given = f", overrides {words!r}" * bool(words)
    return f"Protocol {view.study['protocol']}, budget {view.study['budget']}, {splits_of(view)[1]}{given}; {code}."


def splits_of(view: View) -> tuple[int, str]:
    """The fewest splits of a data set, and how many they have in words: '2 to 3 splits'."""
    numbers = view.fits.groupby("dataset")["split"].nunique()
    fewest, most = (int(numbers.agg(name)) if len(numbers) else 0 for name in ("min", "max"))
    return fewest, f"{fewest} to " * (fewest < most) + count(most, "split")


def sentences(comparison: dict, view: View) -> list[str]:
    """The results of a comparison, one sentence per item."""
    dropped = comparison["dropped"]
    lines = [f"Left out because not every cell is complete: {left_out(comparison, view)}."] if dropped else []
    if "reason" in comparison:
        return [*lines, f"No ranks: {comparison['reason']}."]
    order = ", ".join(f"{view.labels[row['method']]} {row['mean_rank']:.2f}" for row in comparison["ranks"])
    n = len(comparison["datasets"])
    lines.append(f"Mean ranks (1 is best) over {count(n, 'data set')}: {order}.{unconverged(comparison, view)}")
    if test := comparison["friedman"]:
        lines.append(
            f"Friedman: chi-squared {number(test['chi_squared'])}, {p_value(test['p_chi_squared'])}"
            # three methods that are alike on three data sets have p < 0.05 in one of six cases; F may be infinite
            + (f"; Iman-Davenport: {p_value(test['p_f'])}." if test["p_f"] and n > 3 else ".")
        )
    differing = [f"{view.labels[p['a']]} and {view.labels[p['b']]}" for p in comparison["pairs"] if p["reject"]]
    pairs = count(len(comparison["pairs"]), "pair")
    result = f"{len(differing)} of {pairs} differ significantly" + f": {'; '.join(differing)}" * bool(differing)
    lines += [f"Wilcoxon signed-rank tests with Holm's correction: {result}.", comparison["power"]]
    # what Wilcoxon's test cannot tell from so few data sets is no finding of another test either
    return [*lines, practically(comparison, view)] if n >= min_datasets(2) else lines


def unconverged(comparison: dict, view: View, digits: int = 2, most: int | None = None) -> str:
    """The mean ranks where fits that have not converged count, too; '' where that adds no method and no data set."""
    datasets, by_method = comparison["unconverged"]["datasets"], comparison["unconverged"]["ranks"]
    if (datasets, {*by_method}) == (comparison["datasets"], {*comparison["methods"]}):
        return ""
    order = ", ".join(f"{view.labels[name]} {rank:.{digits}f}" for name, rank in [*by_method.items()][:most])
    cells = f"{count(len(by_method), 'method')} on {count(len(datasets), 'data set')}" + ", best" * bool(most)
    return f" With fits that have not converged, {cells}: {order}."


def left_out(comparison: dict, view: View, reasons: bool = True) -> str:
    """Every dropped data set and method with its number of complete cells and, with `reasons`, why others are not."""
    alike: dict[str, list[str]] = {}
    for row in comparison["dropped"]:
        why = "; ".join(f"{n} {reason}" for reason, n in row["reasons"].items())
        text = f": {row['complete']} of {count(row['cells'], _OF[row['kind']])} ({why})"
        name = view.labels.get(row["name"], row["name"])
        alike.setdefault(text if reasons else f" ({row['complete']}/{row['cells']})", []).append(name)
    return "; ".join(", ".join(names) + text for text, names in alike.items())


def practically(comparison: dict, view: View) -> str:
    """Which methods the first in mean rank is practically better than or equal to, by the Bayesian signed-rank test."""
    first = comparison["ranks"][0]["method"]
    others: dict[str, list[str]] = {decision: [] for decision in WORDS}
    for pair in comparison["bayes"]:
        if pair["a"] == first:
            others[pair["decision"]].append(view.labels[pair["b"]])
    results = "; ".join(f"{WORDS[decision]} {', '.join(names)}" for decision, names in others.items() if names)
    rope = ROPES[comparison["metric"]].in_words
    return (
        f"Bayesian signed-rank tests (equal within {rope}, decided from a probability of {DECIDED:g}): "
        f"{view.labels[first]} is {results} (not corrected for choosing the first on the same data sets: {BY_CHANCE})."
    )


def p_value(p: float) -> str:
    """'p = 0.012', or 'p < 0.0001'."""
    return f"p = {number(p, 2)}" if p >= 1e-4 else "p < 0.0001"
