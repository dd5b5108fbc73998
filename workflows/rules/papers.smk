# Figures and tables of papers by name, made from the study that they belong to; plans/items holds those requested.
PAPER_ITEM = f"{NAME.pattern}_[A-Za-z0-9_-]+"


rule paper_figure:
    input:
        VIEW,
        f"{RESULTS}/scorecard.csv",
        report_code,
        lambda w: local(f"{plans()}/items/{w.name}.json"),
    output:
        multiext("figures/{name}", ".pdf", ".png", ".md"),
    log:
        f"{LOGS}/figure_{{name}}.log",
    wildcard_constraints:
        name=PAPER_ITEM,
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
        out=lambda w: f"{COPIES}figures",
    shell:
        logged("python -m gpbench.report item {params.folder} {wildcards.name} {params.out}")


rule paper_table:
    input:
        VIEW,
        f"{RESULTS}/scorecard.csv",
        report_code,
        lambda w: local(f"{plans()}/items/{w.name}.json"),
    output:
        multiext("tables/{name}", ".csv", ".md", ".html", ".tex"),
    log:
        f"{LOGS}/table_{{name}}.log",
    wildcard_constraints:
        name=PAPER_ITEM,
    conda:
        "../envs/gpbench.yaml"
    params:
        **CAPTION,
        out=lambda w: f"{COPIES}tables",
    shell:
        logged("python -m gpbench.report item {params.folder} {wildcards.name} {params.out}")
