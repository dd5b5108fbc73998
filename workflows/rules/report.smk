# the study's view of the store, and everything that is drawn from it
REPORT = "plans/report.code"
COLLECTED = {"predict": ["points.parquet"], "sample": ["prefixes.parquet", "draws.parquet"]}
PROBES = expand(f"{RESULTS}/{{probe}}.parquet", probe=GRAPH.study["probes"])


rule collect:
    input:
        plan=f"plans/{GRAPH.name}.json",
        seen=f"plans/{GRAPH.name}.seen",
        runs=expand("runs/{batch}.json", batch=GRAPH.batches),
    output:
        multiext(f"{RESULTS}/", "scores.parquet", "traces.parquet", *COLLECTED[GRAPH.study["kind"]], "study.json"),
    shell:
        "{PY} -m gpbench.cli collect {GRAPH.name}"


# what finished fits are asked besides predictions
rule probe:
    input:
        f"{RESULTS}/scores.parquet",
        data=expand("data/prepared/{dataset}.npz", dataset=GRAPH.study["datasets"]),
    output:
        f"{RESULTS}/{{probe}}.parquet",
    wildcard_constraints:
        probe="|".join(GRAPH.study["probes"]) or "none",
    shell:
        "OMP_NUM_THREADS=1 {PY} -m gpbench.study.probes {GRAPH.name} {wildcards.probe}"


rule track:
    input:
        f"{RESULTS}/scores.parquet",
    output:
        f"{RESULTS}/tracked.txt",
    shell:
        "{PY} -m gpbench.cli track > {output}"


# one job for all of them: starting a process costs more than drawing
rule figures:
    input:
        f"{RESULTS}/scores.parquet",
        f"{RESULTS}/scorecard.csv",
        PROBES,
        REPORT,
    output:
        report(expand(f"{RESULTS}/figures/{{name}}.pdf", name=FIGURE_NAMES), category="figures"),
        expand(f"{RESULTS}/figures/{{name}}.png", name=FIGURE_NAMES),
    shell:
        "{PY} -m gpbench.report figure {RESULTS}"


rule tables:
    input:
        f"{RESULTS}/scores.parquet",
        PROBES,
        REPORT,
    output:
        expand(f"{RESULTS}/tables/{{name}}.{{kind}}", name=TABLE_NAMES, kind=["csv", "md", "html", "tex"]),
    shell:
        "{PY} -m gpbench.report table {RESULTS}"


rule statistics:
    input:
        f"{RESULTS}/scores.parquet",
        REPORT,
    output:
        multiext(f"{RESULTS}/statistics", ".json", ".md"),
    shell:
        "{PY} -m gpbench.report statistics {RESULTS}"


rule scorecard:
    input:
        f"{RESULTS}/scores.parquet",
        REPORT,
        expand("published/{paper}.csv", paper=[p.stem for p in sorted((WHERE.root / "published").glob("*.csv"))]),
    output:
        multiext(f"{RESULTS}/scorecard", ".csv", ".md", ".html", ".json"),
    shell:
        "{PY} -m gpbench.report scorecard {RESULTS}"


rule page:
    input:
        expand(f"{RESULTS}/figures/{{name}}.png", name=FIGURE_NAMES),
        expand(f"{RESULTS}/tables/{{name}}.html", name=TABLE_NAMES),
        f"{RESULTS}/statistics.json",
        f"{RESULTS}/scorecard.html",
        REPORT,
    output:
        f"{RESULTS}/report.html",
    shell:
        "{PY} -m gpbench.report page {RESULTS}"
