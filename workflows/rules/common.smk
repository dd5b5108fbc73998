# what the rules share
import functools

LOGS = f"logs/{GRAPH.name}"


def logged(command):
    """The command with its output on the terminal and in the log; the copy ignores the signals that end a job."""
    return f"( {command} ) 2>&1 | ( trap '' INT TERM USR1; exec tee -a {{log}} )"


def stoppable(command):
    """The command, whose shells wait until it has ended by itself when a cluster tells all processes of a job to end."""
    return f"trap : TERM USR1; {logged(f'trap : TERM USR1; {command}')}"


@functools.cache
def plans():
    """Folder of the plan's files. It is asked for when jobs are listed: then Snakemake knows whether it will run them."""
    if not workflow.is_main_process:
        return "plans"
    executing = workflow.executor_plugin is not None and not workflow.dryrun
    if executing:
        graph.hand_on(GRAPH, workflow.execution_settings.retries)
    try:
        where = graph.write(WHERE, GRAPH, PLAN, executing)
    except UserError as error:
        sys.exit(f"gpbench: {error}")  # Snakemake shows all other errors of such a function with a traceback
    items.stamp(where, REQUESTED, GRAPH.name)
    return "plans" if executing else str(where.plans)


def report_code(wildcards):
    """What figures, tables and page are made by."""
    return local(f"{plans()}/report.code")
