# source -> data/raw -> data/prepared; sets that ship inside packages have no raw files.
# Only the files that are not there have a rule: Snakemake deletes what a rule makes before it runs the rule again.
for OWNERS, ITEMS in GRAPH.absent.items():

    rule:
        name:
            f"fetch_{OWNERS}"
        output:
            expand("data/raw/{item}", item=ITEMS),
        resources:
            dvc=1,
        params:
            files=ITEMS,
        shell:
            "{PY} -m gpbench.cli data fetch --files {params.files:q}"


rule prepare:
    input:
        lambda w: expand("data/raw/{item}", item=GRAPH.raw[w.dataset]),
    output:
        "data/prepared/{dataset}.npz",
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
