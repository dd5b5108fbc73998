# what the rules share
LOGS = f"logs/{GRAPH.name}"


def logged(command):
    """The command with its output on the terminal and in the log; the copy ignores the signals that end a job."""
    return f"( {command} ) 2>&1 | ( trap '' INT TERM; exec tee {{log}} )"
