# what the rules share
LOGS = f"logs/{GRAPH.name}"


def logged(command):
    """The command with its output on the terminal and in the log; the copy ignores the signals that end a job."""
    return f"( {command} ) 2>&1 | ( trap '' INT TERM USR1; exec tee -a {{log}} )"


def stoppable(command):
    """The command, whose shells wait until it has ended by itself when a cluster tells all processes of a job to end."""
    return f"trap : TERM USR1; {logged(f'trap : TERM USR1; {command}')}"
