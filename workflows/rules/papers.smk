# figures and tables of papers by name, from the study that they are of; `plans/items` says what was asked for
PAPER_ITEM = r"[a-z0-9]+_[a-z0-9_]+"


rule paper_figure:
    input:
        f"{RESULTS}/scores.parquet",
        f"{RESULTS}/scorecard.csv",
        PROBES,
        REPORT,
        "plans/items/{name}.json",
    output:
        multiext("figures/{name}", ".pdf", ".png", ".md"),
    wildcard_constraints:
        name=PAPER_ITEM,
    shell:
        "{PY} -m gpbench.report item {RESULTS} {wildcards.name} figures"


rule paper_table:
    input:
        f"{RESULTS}/scores.parquet",
        f"{RESULTS}/scorecard.csv",
        PROBES,
        REPORT,
        "plans/items/{name}.json",
    output:
        multiext("tables/{name}", ".csv", ".md", ".html", ".tex"),
    wildcard_constraints:
        name=PAPER_ITEM,
    shell:
        "{PY} -m gpbench.report item {RESULTS} {wildcards.name} tables"
