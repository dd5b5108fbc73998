# One job runs a batch of fits. Its only declared output is a JSON file of statuses: Snakemake deletes declared outputs
# when a job fails and before it runs again, so a fit leaves its files undeclared in the store.
# A job that dies is tried again as often as `retries` of the profile says; it goes on from its checkpoints. The last
# try fits nothing and writes how far the batch came, so that the report is made without it.
rule fit:
    input:
        batch=lambda w: local(f"{plans()}/batches/{w.batch}.json"),
        data=lambda w: expand("data/prepared/{dataset}.npz", dataset=GRAPH.batches[w.batch].datasets),
    output:
        "runs/{batch}.json",
    log:
        "logs/fits/{batch}.log",
    priority: lambda w: 10 + GRAPH.batches[w.batch].seconds  # the longest begin first
    conda:
        "../envs/gpbench.yaml"
    threads: lambda w: GRAPH.batches[w.batch].threads
    resources:
        last=lambda w, attempt: int(graph.is_last(attempt)),
        # memory may be why it died
        mem_mb=lambda w, attempt: (1 if graph.is_last(attempt) else min(attempt, 2)) * GRAPH.batches[w.batch].mem_mb,
        runtime=lambda w, attempt: min([GRAPH.batches[w.batch].minutes, *[5] * graph.is_last(attempt)]),
        gpu=lambda w: GRAPH.batches[w.batch].gpu,
    params:
        # only a cluster ends a job after its time
        how=lambda w, resources: (
            "--only-statuses" if resources.last else f"--minutes {resources.runtime}" if workflow.remote_exec else ""
        ),
    shell:
        stoppable(
            "OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} "
            "python -m gpbench.study.commands.job {input.batch} {output} {params.how}"
        )
