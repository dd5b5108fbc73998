# source -> data/raw -> data/prepared; sets that ship inside packages have no raw files
OWNER = {item: dataset for dataset, items in GRAPH.raw.items() for item in items}


rule fetch:
    output:
        "data/raw/{item}",
    params:
        dataset=lambda w: OWNER[w.item],
    resources:
        dvc=1,
    shell:
        "{PY} -m gpbench.cli fetch {params.dataset}"


rule prepare:
    input:
        lambda w: expand("data/raw/{item}", item=GRAPH.raw[w.dataset]),
    output:
        "data/prepared/{dataset}.npz",
    shell:
        "{PY} -m gpbench.cli prepare {wildcards.dataset}"
