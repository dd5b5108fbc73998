# The graph of a study. `snakemake --cores 2` runs the default one;
#   snakemake --cores 2 --config study=default overrides="budget=smoke svgp.num_inducing=50"
# runs another, in a results folder of that run;
#   snakemake --cores 2 figures/cutajar2017_fig2.pdf
# makes a figure of a paper (docs/papers.md lists them) from the study that it belongs to. `mirror=FOLDER` or
# `mirror=URL` names a place of raw files, as GPBENCH_MIRROR does, and `site=` holds the trainer's settings for a machine.
# The study is planned here, in Snakemake's main process, before any job starts.
import atexit
import os
import sys
from dataclasses import asdict

import yaml
from snakemake.exceptions import WorkflowError

from gpbench import places
from gpbench.config.compose import NAME
from gpbench.errors import UserError, unknown
from gpbench.report import registry
from gpbench.report.papers import items
from gpbench.study.commands import snakemake_graph as graph
from gpbench.study.storage import snakemake_lock

# with a storage (docs/clusters.md) rules work on copies of what they make, in a folder of Snakemake's
STORAGE = workflow.storage_settings
COPIES = ""
if STORAGE.default_storage_provider:
    bucket = STORAGE.default_storage_prefix.partition("://")[2].rstrip("/")
    COPIES = f"{STORAGE.local_storage_prefix}/{STORAGE.default_storage_provider}/{bucket}/"
    os.environ.update(GPBENCH_COPIES=os.path.abspath(COPIES))

WHERE = places.find()

# jobs inherit these: `python` is the interpreter that runs Snakemake, and the mirror is where they fetch
os.environ.update(PATH=os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))))
if config.get("mirror"):
    os.environ.update(GPBENCH_MIRROR=str(config["mirror"]))

with open(workflow.source_path("workflows/config.schema.yaml"), encoding="utf-8") as schema:
    CONFIG_KEYS = yaml.safe_load(schema)["properties"]

try:
    for key in config:
        if key not in CONFIG_KEYS:
            raise unknown("key", key, CONFIG_KEYS, "--config")
    if workflow.is_main_process:
        snakemake_lock.mend(WHERE.root)
        REQUESTED = items.requested(WHERE.conf, sys.argv[1:])
        CHOSEN = items.choose(REQUESTED, config.get("study"), str(config.get("overrides") or ""))
        GRAPH, PLAN = graph.load(WHERE, *CHOSEN, str(config.get("site") or ""))
        items.refuse_skipped(REQUESTED, PLAN.cells)
        for item in REQUESTED:
            jobs = len(GRAPH.batches)
            print(
                f"gpbench: {item.target} is made from results/{GRAPH.name}; jobs of fits to run: {jobs}",
                file=sys.stderr,
            )
        graph.hand_on(GRAPH)
    else:
        GRAPH = graph.read(WHERE)
    STUDY = asdict(GRAPH.study)
    FIGURE_NAMES, TABLE_NAMES = (registry.names(STUDY, kind) for kind in ("figures", "tables"))
except UserError as error:
    raise WorkflowError(str(error))
except KeyboardInterrupt:
    sys.exit("gpbench: stopped; run again to resume")

RESULTS = f"results/{GRAPH.name}"


# for `snakemake --report results/STUDY/snakemake.html`
report: "workflows/report/workflow.rst"


wildcard_constraints:
    name=r"[a-z0-9_]+",
    dataset=NAME.pattern,
    batch=f"{NAME.pattern}-[0-9a-f]+",
    item=r".+",


include: "workflows/rules/common.smk"
include: "workflows/rules/data.smk"
include: "workflows/rules/fit.smk"
include: "workflows/rules/report.smk"
include: "workflows/rules/papers.smk"


# all but fits and the preparation of data: they are short, and some need what only the head has (a tracker, a network)
localrules:
    all,
    data,
    verdict,
    collect,
    probe,
    track,
    figures,
    tables,
    statistics,
    scorecard,
    page,
    paper_figure,
    paper_table,


rule all:
    default_target: True
    input:
        f"{RESULTS}/complete.txt",
        f"{RESULTS}/report.html",


# the last line of a run, after all that Snakemake says: what it was for, if that was made, or how to go on
onsuccess:
    made = [item.target for item in REQUESTED] or [f"{RESULTS}/report.html"]
    see = f"; see {' '.join(made)}" if COPIES or all(map(os.path.exists, made)) else ""
    atexit.register(print, f"gpbench: done{see}", file=sys.stderr)


onerror:
    why = "gpbench: stopped, see logs/; run again to resume"
    atexit.register(print, why, file=sys.stderr)


# runs after the report, so that the report shows what failed
rule verdict:
    input:
        f"{RESULTS}/report.html",
        f"{RESULTS}/tracked.txt",
    output:
        f"{RESULTS}/complete.txt",
    log:
        f"{LOGS}/verdict.log",
    conda:
        "workflows/envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.cli verdict {params.study} && echo complete > {output}")


# `retries` of a cluster's profile is for jobs that may die with their node
for one in workflow.rules:
    if one.name not in ("fit", "prepare"):
        one.restart_times = 0
