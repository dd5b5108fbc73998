# One job runs a batch of fits. Its only declared output is a JSON file of statuses: Snakemake deletes declared outputs
# when a job fails and before it runs again, so a fit leaves its files undeclared in the store.
rule fit:
    input:
        batch="plans/batches/{batch}.json",
        data=lambda w: expand("data/prepared/{dataset}.npz", dataset=GRAPH.batches[w.batch].datasets),
    output:
        "runs/{batch}.json",
    log:
        "logs/fits/{batch}.log",
    priority: 10
    conda:
        "../envs/gpbench.yaml"
    threads: lambda w: GRAPH.batches[w.batch].threads
    resources:
        mem_mb=lambda w: GRAPH.batches[w.batch].mem_mb,
        runtime=lambda w: GRAPH.batches[w.batch].minutes,
        gpu=lambda w: GRAPH.batches[w.batch].gpu,
    shell:
        logged(
            "OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} "
            "python -m gpbench.study.commands.job {input.batch} {output}"
        )
