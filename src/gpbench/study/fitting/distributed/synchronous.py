"""Synchronous SGD by Lightning's DDP: k workers take B/k rows of every mini-batch each, with the same noise.

With w_b the weights of the rows and S_1 .. S_k a partition of the mini-batch, worker i differentiates

    KL - k sum_{b in S_i} w_b log p(y_b | ...),    whose mean over the workers is    KL - sum_b w_b log p(y_b | ...),

so that every step is that of one process, up to rounding. The workers are forks of this process; the first of them
keeps trace and checkpoints, and the last checkpoint is what they hand back.
"""

import os
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed, multiprocessing

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.methods.base import Noise
from gpbench.methods.training_rows import Batch
from gpbench.places import DISK, errno_of_disk
from gpbench.study.fitting import devices
from gpbench.study.fitting.children import die_with_parent
from gpbench.study.fitting.lightning_module import MODEL_FILE, GradientFit, TimeCap, answer, outcome, save, train
from gpbench.study.fitting.loop import share
from gpbench.study.fitting.outcome import Lost, Outcome
from gpbench.study.records import Group

__all__ = ["MODEL_FILE", "answer", "run", "save"]


class SharedFit(GradientFit):
    """The fit of one worker of `workers`, the one with number `rank`."""

    def __init__(self, group: Group, table: Table, work: Path, rank: int) -> None:
        device = torch.device("cuda", rank) if group.how.device == "cuda" else torch.device("cpu")
        super().__init__(group, table, work, device)
        self.to(device)
        self.rank, self.workers = rank, group.what.workers

    def draw(self, step: int) -> tuple[Batch, Noise]:
        batch, noise = super().draw(step)
        return share(batch, self.rank, self.workers), noise

    def differentiate(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss of the whole mini-batch, so that every worker decides alike."""
        return self.trainer.strategy.reduce(super().differentiate(batch, noise), reduce_op="mean")

    def propagate(self, total: Tensor) -> None:
        self.manual_backward(total)  # where DDP averages the gradients

    def is_over(self) -> bool:
        return self.trainer.strategy.broadcast(super().is_over())

    def record(self, objective: Tensor) -> None:
        if self.rank == 0:
            super().record(objective)

    def save(self) -> None:
        if self.rank == 0:
            super().save()


def require_divisible(fit: GradientFit, workers: int) -> None:
    """Refuse what cannot be cut into equal parts whose gradients add up."""
    name = fit.group.what.method.module
    rows = fit.batch_size or int(fit.data.count[0])
    if rows % workers:
        raise UserError(f"{rows} rows a step cannot be shared equally by {workers} workers; change batch_size")
    if fit.noise_shapes(rows, 0).size(rows) != fit.noise_shapes(rows, 0).size(0):
        raise UserError(
            f"{name} draws noise for every row, which synchronous workers cannot share; leave out its scheme"
        )


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Fit the one fit of a group with `what.workers` workers (resuming where it was cut off)."""
    workers = group.what.workers
    if group.how.device == "cuda" and (gpus := torch.cuda.device_count()) < workers:
        raise UserError(f"{workers} synchronous workers need a GPU each, {gpus} are here")
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    fit = GradientFit(group, table, work, torch.device("cpu"))  # CUDA does not either
    require_divisible(fit, workers)
    if not fit.is_finished():
        _fork(workers, group, table, work)
    torch.set_num_threads(group.how.threads)
    device = devices.of(group.how)
    fit = GradientFit(group, table, work, device).to(device)
    if not fit.is_finished():
        return [Outcome("stopped", fit.stopped())]
    result = outcome(fit, 0)
    result.info["workers"] = workers
    return [result]


def _fork(workers: int, group: Group, table: Table, work: Path) -> None:
    """Let the workers train until the last checkpoint is written."""
    meeting = work / "meeting"
    meeting.unlink(missing_ok=True)
    try:
        multiprocessing.start_processes(_work, (meeting, group, table, work), nprocs=workers, start_method="fork")
    except multiprocessing.ProcessRaisedException as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    except multiprocessing.ProcessExitedException as error:
        if error.exit_code in DISK:  # see `_work`
            raise OSError(error.exit_code, os.strerror(error.exit_code), str(work)) from error
        raise Lost(f"a worker died ({error})") from error
    finally:
        meeting.unlink(missing_ok=True)


def _work(rank: int, meeting: Path, group: Group, table: Table, work: Path) -> None:
    """Life of one worker."""
    die_with_parent()
    how, workers = group.how, group.what.workers
    torch.set_num_threads(how.threads)
    os.environ["LOCAL_RANK"] = str(rank)  # tells Lightning that the processes are there already
    backend = "nccl" if how.device == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{meeting.absolute()}", rank=rank, world_size=workers)
    try:
        train(SharedFit(group, table, work, rank), devices=workers, strategy=DDPStrategy(process_group_backend=backend))
    except TimeCap:
        pass  # the checkpoint is written
    except Exception as error:
        if number := errno_of_disk(error):  # at once: else another worker fails first, for want of this one
            os._exit(number)
        raise
    finally:
        distributed.destroy_process_group()
