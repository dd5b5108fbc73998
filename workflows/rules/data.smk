# source -> data/raw -> data/prepared; sets that ship inside packages have no raw files


rule prepare:
    output:
        "data/prepared/{dataset}.npz",
    log:
        "results/logs/prepare-{dataset}.txt",
    resources:
        dvc=1,
    shell:
        "{PY} -m gpbench.cli prepare {wildcards.dataset} > {log} 2>&1 || (cat {log} >&2; exit 1)"
