"""A Slurm of two nodes on this host, under one folder: for `make cluster-test`.

It needs root and Debian's packages slurm-wlm and munge (22.05 was tried). Commands of Slurm find it by links in
/etc/slurm, because jobs lose SLURM_CONF; a Slurm that is there already is refused.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

NODES = ("n1", "n2")
LINKS = Path("/etc/slurm")
FILES = ("slurm.conf", "cgroup.conf", "gres.conf")
PLUGIN = "snakemake_executor_plugin_slurm"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONF = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/sock
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmctldPort=16817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MinJobAge=600
SlurmdParameters=config_overrides
SlurmdTimeout=6
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=1 RealMemory=8000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=1 RealMemory=8000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
GRES = "NodeName=n2 Name=gpu File=/dev/null\n"


def missing() -> str:
    """Why there can be no Slurm here, in a line; '' if there can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    absent = [name for name in NEEDED if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install --no-install-recommends slurm-wlm munge"
    if not importlib.util.find_spec(PLUGIN):
        return f"{PLUGIN} is not installed: pip install -r requirements.lock"
    if os.geteuid():
        return f"only root can start a Slurm here and link it into {LINKS}"
    present = [LINKS / name for name in FILES if (LINKS / name).exists()]
    return f"this machine has a Slurm already ({present[0]})" if present else ""


class Slurm:
    """The daemons; `say` runs a command of Slurm and returns its output."""

    def __init__(self, root: Path) -> None:
        os.environ["PATH"] += ":/usr/sbin"
        self.root = root
        for folder in ("munge", "state", "log", *(f"spool-{node}" for node in NODES)):
            (root / folder).mkdir(parents=True)
        (root / "munge").chmod(0o711)
        key = root / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        (root / "slurm.conf").write_text(CONF.format(host=host, root=root))
        (root / "gres.conf").write_text(GRES)
        version = "v1" if "cgroup/memory" in Path("/proc/mounts").read_text() else "v2"
        (root / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\nCgroupAutomount=no\n")
        LINKS.mkdir(exist_ok=True)
        for name in FILES:
            (LINKS / name).unlink(missing_ok=True)  # of one that was killed
            (LINKS / name).symlink_to(root / name)
        munge = {"socket": "sock", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self.say("munged", "--force", *(f"--{option}={root}/munge/{name}" for option, name in munge.items()))
        self.say("slurmctld")
        for node in NODES:
            self.say("slurmd", "-N", node)
        self.wait(lambda: self.say("sinfo", "-h", "-o", "%t").split() == ["idle"], 60)

    def say(self, *words: str) -> str:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    @staticmethod
    def wait(condition, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.2)

    def jobs(self, *states: str) -> dict[str, str]:
        """Number of each job in one of some states (all that wait or run, if none is given) -> its comment."""
        chosen = ("-t", ",".join(states)) if states else ()
        lines = self.say("squeue", "-h", "-o", "%i %k", *chosen).splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def hold(self, held: bool) -> None:
        """Start no more jobs, or start them again."""
        self.say("scontrol", "update", "PartitionName=main", f"State={'DOWN' if held else 'UP'}")

    def kill_node(self, node: str) -> None:
        """As if its power failed: slurmd and all below it die at once."""
        for process in self._of(node):
            process.kill()

    def start_node(self, node: str) -> None:
        self.say("slurmd", "-N", node)

    def _of(self, node: str) -> list[psutil.Process]:
        """slurmd of a node, its steps, and what they started."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or [""]
            daemon = Path(words[0]).name == "slurmd" and node in words
            step = words[0].startswith("slurmstepd") and self._node(process) == node
            if daemon or step:
                found += [process, *process.children(recursive=True)]
        return found

    def _node(self, step: psutil.Process) -> str:
        """The node of a slurmstepd, by the log that it holds open."""
        logs = [Path(file.path).stem for file in step.open_files()]
        return next((name.removeprefix("slurmd-") for name in logs if name.startswith("slurmd-")), "")

    def stop(self) -> None:
        for node in NODES:
            self.kill_node(node)
        for name in ("slurmctld.pid", "munge/pid"):
            if (self.root / name).is_file():
                psutil.Process(int((self.root / name).read_text())).kill()
        for name in FILES:
            (LINKS / name).unlink()
