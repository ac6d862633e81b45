"""Train a run by a loop of study.py in a process of its own, into the store.

The loop may draw from global generators, start processes and leave what it likes behind, so that no other run
may be in its process.
"""

import concurrent.futures
import functools
import math
import multiprocessing
import threading
from concurrent.futures.process import BrokenProcessPool

import torch

from ncpipe.config.reading import at_start
from ncpipe.config.study import study_errors
from ncpipe.datasets.own_loaders import check_loaders
from ncpipe.runs.fingerprint import RunFingerprint, check_code
from ncpipe.runs.pool import LOOK, executor, should_stop, tell, uninterrupted
from ncpipe.runs.results import store_results
from ncpipe.runs.run_claims import ClaimWriter
from ncpipe.runs.store import checkpoint_of
from ncpipe.runs.training_log import FINISHED, STOPPED, log_time
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress, plural, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints, Stopped, epochs_done
from ncpipe.training.device import prepare_device
from ncpipe.training.own_loop import train_own


def train_elsewhere(
    fingerprint: RunFingerprint,
    checkpoint_seconds: float,
    progress: Progress,
    stop: threading.Event,
    claim: ClaimWriter,
) -> None:
    """Train a run in another process, which puts its folder into the store.

    Raises Stopped after `stop` is set and the process has ended.
    """
    run, device = fingerprint.run, prepare_device(fingerprint.compute)
    done, epochs = epochs_done(checkpoint_of(fingerprint)), run.spec.epochs
    say(
        f"train {run.name}: own loop on {device} ({plural(fingerprint.compute.threads, 'thread')}), "
        f"{epochs} epochs{f', from the checkpoint after {done}' if done else ''}"
    )
    gpu = torch.cuda.current_device() if device.type == "cuda" else None
    context = multiprocessing.get_context("spawn")
    start, stop_there, state = progress.seconds(), context.Event(), context.Array("d", [done, math.nan])
    with executor(1, stop_there, state) as process:
        with uninterrupted():
            future = process.submit(train_here, fingerprint, checkpoint_seconds, gpu)
        try:
            while not concurrent.futures.wait([future], LOOK).done:
                if stop.is_set():
                    stop_there.set()
                epoch, loss = int(state[0]), state[1]
                claim.beat(epoch, progress.left())
                if epoch > done:
                    at = f"{epoch} of {epochs}"
                    progress.add(epoch - done, run.name, at, functools.partial(float, loss))
                    done = epoch
            line = future.result()
        except BrokenProcessPool:
            raise InputError(
                f"{run.name}: its training process was killed; start it again to resume"
            ) from None
        except Stopped:
            log_time([fingerprint], device.type, progress.seconds() - start, STOPPED)
            raise
        except BaseException:
            stop_there.set()
            raise
    say(line)
    progress.finish(run.name, 1)
    log_time([fingerprint], device.type, progress.seconds() - start, FINISHED)


def train_here(fingerprint: RunFingerprint, checkpoint_seconds: float, gpu: int | None) -> str:
    """Train a run in this process and put its folder into the store; return how it ended.

    Raises InputError if this process has read other code, or finds other files, than the fingerprint is of.
    """
    check_code(fingerprint, at_start())
    check_loaders(PREPARED / fingerprint.run.data, fingerprint.data, at_start())
    if gpu is not None:
        torch.cuda.set_device(gpu)
    device = prepare_device(fingerprint.compute)
    checkpoints = Checkpoints([checkpoint_of(fingerprint)], checkpoint_seconds, at_start().check)
    with study_errors():
        trained = train_own(fingerprint.run, device, checkpoints, tell, should_stop)
    [line] = store_results([fingerprint], [trained], device, checkpoints)
    return line
