# One job runs a batch of fits. Its only output is a JSON of statuses: Snakemake deletes declared outputs,
# so what fits leave behind lies undeclared in the store.


def batch(wildcards):
    return GRAPH.batches[wildcards.batch]


rule fit:
    input:
        batch="plans/batches/{batch}.json",
        data=lambda w: expand("data/prepared/{dataset}.npz", dataset=batch(w).datasets),
    output:
        "runs/{batch}.json",
    threads: lambda w: batch(w).threads
    priority: 10
    resources:
        mem_mb=lambda w: batch(w).mem_mb,
        runtime=lambda w: batch(w).minutes,
        gpu=lambda w: batch(w).gpu,
    shell:
        "OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} {PY} -m gpbench.study.commands.job {input.batch} {output}"
