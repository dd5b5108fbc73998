# The graph of a study. `snakemake --cores 2` runs the default one;
#   snakemake --cores 2 --config study=default overrides="budget=smoke svgp.num_inducing=50"
# runs another, in its own results folder;
#   snakemake --cores 2 figures/cutajar2017_fig2.pdf
# makes a figure of a paper (docs/papers.md lists them), from the study that it is of. Planning happens here, in the main
# process, before any job.
# mirror=FOLDER or mirror=URL names a place of raw files, as GPBENCH_MIRROR does.
import os
import shlex
import sys
from dataclasses import asdict

from snakemake.exceptions import WorkflowError

from gpbench import places
from gpbench.errors import UserError, unknown
from gpbench import report as reporting
from gpbench.report.papers import items
from gpbench.study.commands import snakemake_graph as graph

PY = shlex.quote(sys.executable)
WHERE = places.find()

if "mirror" in config:  # jobs inherit it
    os.environ["GPBENCH_MIRROR"] = str(config["mirror"])

try:
    for key in config:
        if key not in ("study", "overrides", "mirror"):
            raise unknown("key", key, ("study", "overrides", "mirror"), "--config")
    if workflow.is_main_process:
        ASKED = items.requested(WHERE.conf, sys.argv[1:])
        GRAPH = graph.load(WHERE, *items.choose(ASKED, config.get("study"), str(config.get("overrides", ""))))
        items.stamp(WHERE, ASKED, GRAPH.name)
        for item in ASKED:
            jobs = len(GRAPH.batches)
            print(f"gpbench: {item.target} is made from results/{GRAPH.name}, {jobs} jobs of fits to run", file=sys.stderr)
        os.environ["GPBENCH_RUN"] = GRAPH.name  # jobs inherit it
    else:
        GRAPH = graph.read(WHERE, os.environ["GPBENCH_RUN"])
    STUDY = asdict(GRAPH.study)
    FIGURE_NAMES, TABLE_NAMES = (reporting.names(STUDY, kind) for kind in ("figures", "tables"))
except UserError as error:
    raise WorkflowError(str(error))

RESULTS = f"results/{GRAPH.name}"


# of `snakemake --report results/STUDY/snakemake.html`
report: "workflows/report/workflow.rst"


wildcard_constraints:
    name=r"[a-z0-9_]+",
    dataset=r"[a-z0-9_]+",
    batch=r"[0-9a-f]+",
    item=r".+",


include: "workflows/rules/data.smk"
include: "workflows/rules/fit.smk"
include: "workflows/rules/report.smk"
include: "workflows/rules/papers.smk"


localrules:
    all,
    data,
    verdict,


rule all:
    default_target: True
    input:
        f"{RESULTS}/complete.txt",
        f"{RESULTS}/report.html",


# the report is there first, so that what failed can be read in it
rule verdict:
    input:
        f"{RESULTS}/report.html",
        f"{RESULTS}/tracked.txt",
    output:
        f"{RESULTS}/complete.txt",
    shell:
        "{PY} -m gpbench.cli verdict {GRAPH.name} && echo complete > {output}"
