# source -> data/raw -> data/prepared; data sets that ship inside packages have no raw files.
# Only missing files have a rule, because Snakemake deletes what a rule makes before it runs the rule again.
# They are fetched where Snakemake runs, because the nodes of a cluster often have no network.
for OWNERS, FILES in GRAPH.absent.items():

    rule:
        name:
            f"fetch_{OWNERS}"
        output:
            local(expand("data/raw/{file}", file=FILES)),
        log:
            f"logs/data/fetch_{OWNERS}.log",
        localrule: True
        conda:
            "../envs/gpbench.yaml"
        resources:
            dvc=1,
        params:
            files=FILES,
        shell:
            logged("python -m gpbench.cli data fetch --files {params.files:q}")


rule prepare:
    input:
        lambda w: local(expand("data/raw/{file}", file=GRAPH.datasets[w.dataset].raw)),
        entry=lambda w: local(GRAPH.datasets[w.dataset].entry),
    output:
        "data/prepared/{dataset}.npz",
    log:
        "logs/data/prepare_{dataset}.log",
    conda:
        "../envs/gpbench.yaml"
    resources:
        mem_mb=lambda w: GRAPH.datasets[w.dataset].mem_mb,
        runtime=lambda w: GRAPH.datasets[w.dataset].minutes,
    shell:
        logged("python -m gpbench.cli data prepare {wildcards.dataset}")


# every data set that is not on request: fetched and prepared, with every checksum and figure of the catalogue verified
rule data:
    input:
        expand("data/prepared/{dataset}.npz", dataset=GRAPH.catalogue),
    output:
        csv="results/data/statistics.csv",
        md="results/data/statistics.md",
    log:
        "logs/data/verify.log",
    conda:
        "../envs/gpbench.yaml"
    shell:
        logged("python -m gpbench.cli data verify --statistics {output.csv}")
