# source -> data/raw -> data/prepared; sets that ship inside packages have no raw files.
# Only the files that are not there have a rule: Snakemake deletes what a rule makes before it runs the rule again.
# They are fetched where Snakemake runs; nodes of a cluster often have no network.
for OWNERS, ITEMS in GRAPH.absent.items():

    rule:
        name:
            f"fetch_{OWNERS}"
        output:
            expand("data/raw/{item}", item=ITEMS),
        localrule: True
        resources:
            dvc=1,
        params:
            files=ITEMS,
        shell:
            "{PY} -m gpbench.cli data fetch --files {params.files:q}"


rule prepare:
    input:
        lambda w: expand("data/raw/{item}", item=GRAPH.datasets[w.dataset].raw),
        entry=lambda w: GRAPH.datasets[w.dataset].entry,
    output:
        "data/prepared/{dataset}.npz",
    resources:
        mem_mb=lambda w: GRAPH.datasets[w.dataset].mem_mb,
    shell:
        "{PY} -m gpbench.cli data prepare {wildcards.dataset}"


# every set that is not on request: fetched, prepared, and every md5 and figure of the catalogue checked
rule data:
    input:
        expand("data/prepared/{dataset}.npz", dataset=GRAPH.catalogue),
    output:
        multiext("results/data/statistics", ".csv", ".md"),
    shell:
        "{PY} -m gpbench.cli data verify --statistics {output[0]}"
