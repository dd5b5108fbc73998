# the study's view of the store, and everything that is drawn from it
COLLECTED = {
    "predict": ["points.parquet", "chains.parquet"],
    "sample": ["prefixes.parquet", "draws.parquet"],
    "solve": ["systems.parquet"],
}
# what every caption of the Snakemake report names (in workflows/report/)
CAPTION = {
    "study": GRAPH.name,
    "basis": "protocol {protocol}, budget {budget}, at most {splits} splits".format_map(STUDY),
    "folder": lambda w: f"{COPIES}{RESULTS}",
}
# what tables and figures read
TABLES = ["scores.parquet", "traces.parquet", *COLLECTED[GRAPH.study.kind], "study.json"]
PROBES = expand(f"{RESULTS}/{{probe}}.parquet", probe=GRAPH.study.probes)
VIEW = [*expand(f"{RESULTS}/{{table}}", table=TABLES), *PROBES]


rule collect:
    input:
        plan=lambda w: local(f"{plans()}/{GRAPH.name}.json"),
        seen=lambda w: local(f"{plans()}/{GRAPH.name}.seen"),
        runs=expand("runs/{batch}.json", batch=GRAPH.batches),
    output:
        multiext(f"{RESULTS}/", *TABLES),
    log:
        f"{LOGS}/collect.log",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.cli collect {params.study}")


# what a study evaluates on finished fits besides predictions
rule probe:
    input:
        f"{RESULTS}/scores.parquet",
        data=expand("data/prepared/{dataset}.npz", dataset=GRAPH.study.datasets),
    output:
        f"{RESULTS}/{{probe}}.parquet",
    log:
        f"{LOGS}/probe_{{probe}}.log",
    wildcard_constraints:
        probe="|".join(GRAPH.study.probes) or "none",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("OMP_NUM_THREADS=1 python -m gpbench.study.results.probes {params.study} {wildcards.probe}")


rule track:
    input:
        f"{RESULTS}/scores.parquet",
    output:
        f"{RESULTS}/tracked.txt",
    log:
        f"{LOGS}/track.log",
    conda:
        "../envs/gpbench.yaml"
    shell:
        logged("python -m gpbench.cli track > {output}")


# one job for all of them, a process a thread: starting one costs about as much as drawing three
rule figures:
    input:
        VIEW,
        f"{RESULTS}/scorecard.csv",
        report_code,
    output:
        [
            report(f"{RESULTS}/figures/{n}.png", "../report/figures.rst", category="Figures", labels={"figure": n})
            for n in FIGURE_NAMES
        ],
        expand(f"{RESULTS}/figures/{{name}}.pdf", name=FIGURE_NAMES),
    log:
        f"{LOGS}/figures.log",
    conda:
        "../envs/gpbench.yaml"
    threads: 4
    params:
        **CAPTION,
        names=" ".join(FIGURE_NAMES),
        share=lambda w, threads: -(-len(FIGURE_NAMES) // threads),
    shell:
        logged(
            "echo {params.names} | OMP_NUM_THREADS=1 "
            "xargs -n {params.share} -P {threads} python -m gpbench.report figure {params.folder}"
        )


rule tables:
    input:
        VIEW,
        report_code,
    output:
        [
            report(f"{RESULTS}/tables/{n}.html", "../report/tables.rst", category="Tables", labels={"table": n})
            for n in TABLE_NAMES
        ],
        expand(f"{RESULTS}/tables/{{name}}.{{kind}}", name=TABLE_NAMES, kind=["csv", "md", "tex"]),
    log:
        f"{LOGS}/tables.log",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.report table {params.folder}")


rule statistics:
    input:
        VIEW,
        report_code,
    output:
        f"{RESULTS}/statistics.json",
        report(f"{RESULTS}/statistics.md", "../report/statistics.rst", category="Report", labels={"part": "statistics"}),
    log:
        f"{LOGS}/statistics.log",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.report statistics {params.folder}")


rule scorecard:
    input:
        VIEW,
        report_code,
        local(expand("published/{paper}.csv", paper=[p.stem for p in sorted((WHERE.root / "published").glob("*.csv"))])),
    output:
        multiext(f"{RESULTS}/scorecard", ".csv", ".md", ".json"),
        report(f"{RESULTS}/scorecard.html", "../report/scorecard.rst", category="Report", labels={"part": "scorecard"}),
    log:
        f"{LOGS}/scorecard.log",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.report scorecard {params.folder}")


rule page:
    input:
        expand(f"{RESULTS}/figures/{{name}}.png", name=FIGURE_NAMES),
        expand(f"{RESULTS}/tables/{{name}}.html", name=TABLE_NAMES),
        VIEW,
        f"{RESULTS}/statistics.json",
        expand(f"{RESULTS}/scorecard.{{kind}}", kind=["csv", "json", "html"]),
        report_code,
    output:
        report(f"{RESULTS}/report.html", "../report/page.rst", category="Report", labels={"part": "everything"}),
    log:
        f"{LOGS}/page.log",
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
    shell:
        logged("python -m gpbench.report page {params.folder}")
