"""Facts of a study for its page: what was compared, where the numbers come from, how to reproduce them."""

import shlex

from gpbench import config
from gpbench.errors import count
from gpbench.report.page import sections
from gpbench.report.registry import names
from gpbench.report.significance.findings import splits_of
from gpbench.report.tables.render import number
from gpbench.report.view import SCORED, UNMIXED, View, commits
from gpbench.study.fitting.convergence import LARGEST_GAIN, LBFGS

FEWEST_SPLITS = 3  # splits below which a paired interval has at most one degree of freedom


def summary(view: View) -> list[tuple[str, str]]:
    """What was compared, planned and finished, as (term, text)."""
    done, planned = int((view.fits["status"] == "done").sum()), len(view.fits)
    judged = view.done.loc[view.done["convergence"] != "", "convergence"].value_counts()
    choice, reported = view.study["reported"], ""
    if view.study["kind"] == "predict":
        reported = f", which reports {', '.join(choice['metrics'])} and the {choice['spread']} over splits"
    return [
        ("fits", f"{done} of {planned} done"),
        ("methods", ", ".join(view.labels[method] for method in view.methods)),
        ("data sets", ", ".join(f"{name} ({view.tasks.get(name, 'task unknown')})" for name in view.datasets)),
        ("protocol", f"{view.study['protocol']}{reported}"),
        ("budget", str(view.study["budget"])),
        ("splits", splits_of(view)[1]),
        *([("convergence", ", ".join(f"{n} {name}" for name, n in judged.items()))] if len(judged) else []),
        ("training time", f"{number(view.done['seconds_train'].sum() / 60)} minutes over all finished fits"),
    ]


def warnings(view: View) -> list[str]:
    """What a reader must know before any number."""
    unmixed = view.fits[view.fits["status"] == UNMIXED]
    chains, optimised = (int((unmixed["steps_done"].isna() == is_chain).sum()) for is_chain in (True, False))
    unfinished = ~view.fits["status"].isin(SCORED)
    unsolved = view.done.reindex(columns=["unsolved", "unsolved_test"]).gt(0).any(axis=1)
    gpus = view.fits["gpu"].dropna().loc[lambda names: names != ""]
    gain = view.study.get("gain") or 0.0
    limit = f"{gain:g}" + f" ({LBFGS.gain:g} by L-BFGS)" * (gain <= LARGEST_GAIN)  # one above holds for every optimiser
    marked = "Cells with such fits are marked ✗ and neither ranked nor compared."
    notes = {
        "not done: not part of any mean; listed below with the reasons.": int(unfinished.sum()),
        f"by Markov chains that have not converged: their R-hat exceeds {view.study.get('r_hat')}, the limit of the "
        f"budget, or they have too few effective draws. {marked}": chains,
        f"by gradients that have not converged: as many steps again would gain {limit} nats a datum or more, or "
        f"nothing can be predicted. {marked}": optimised,
        "with linear systems that ended before their tolerance: scores.parquet has their share, of training as "
        "`unsolved`, of the prediction as `unsolved_test`.": int(unsolved.sum()),
        f"on a GPU ({', '.join(sorted(gpus.unique()))}), with its seconds and the memory of its host.": len(gpus),
    }
    texts, (fewest, splits) = [], splits_of(view)
    if view.study["budget"] == "smoke":
        texts.append("Budget smoke only shows that everything runs: its ranks and differences mean nothing.")
    elif view.study["budget"] == "quick":
        texts.append("Budget quick is short of what papers train: ranks hold for methods trained so briefly.")
    if view.study["kind"] == "predict" and fewest < FEWEST_SPLITS:
        texts.append(f"{splits} cannot tell methods apart on a data set; take {FEWEST_SPLITS} or more.")
    texts += [f"{count(number, 'fit')} {note}" for note, number in notes.items() if number]
    if view.needed_jitter:
        texts.append(f"{view.needed_jitter} scores.parquet says how often, and in which matrices.")
    if view.still_improving:
        texts.append(f"{view.still_improving} The budget allows that: they are ranked all the same.")
    return texts


def provenance(view: View) -> list[tuple[str, str]]:
    """Where the numbers come from, as (term, text)."""
    dirty = int(view.fits["dirty"].eq(True).sum())
    overrides = sorted({text for text in view.fits["overrides"].dropna() if text})
    known = {"collected on": view.study.get("machine"), "versions": view.study.get("versions")}
    processors = view.done["processor"].astype(object).replace({"": None}).fillna("not recorded").value_counts()
    return [
        ("collected at commit", view.study["commit"] or "none (not a git checkout)"),
        ("created", str(view.study["created"])),
        ("commits of the fits", ", ".join(commits(view.fits)) or "none"),
        ("fits with uncommitted changes", str(dirty)),
        ("processors of the fits", ", ".join(f"{name} ({n})" for name, n in sorted(processors.items())) or "none"),
        ("overrides", "; ".join(overrides) or "none"),
        *((term, ", ".join(f"{name} {value}" for name, value in of.items())) for term, of in known.items() if of),
    ]


def commands(view: View) -> list[tuple[str, str]]:
    """How to reproduce the study and parts of it, as (purpose, commands)."""
    checkout = [f"git checkout {view.study['commit']}"] if view.study["commit"] else []
    name, example = view.study["name"], names(view.study, "figures")[0]
    study, overrides = config.command_words(view.study["command"])
    cite = shlex.join(["gpbench", "cite", study or name, *(["--overrides", overrides] if overrides else [])])
    if dirty := int(view.fits["dirty"].eq(True).sum()):
        checkout.append(f"# {count(dirty, 'fit')} had uncommitted changes: that commit alone does not give them again")
    return [
        ("How to reproduce it", "\n".join([*checkout, sections.command(view)])),
        ("How to remake one table or figure", f"python -m gpbench.report figure results/{name} {example}"),
        ("How to cite and share it", f"{cite}\ngpbench crate {name}"),
    ]
