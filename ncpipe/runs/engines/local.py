"""Train tasks in threads of this process: the engine `local`."""

from collections.abc import Iterator, Sequence

from ncpipe.runs.batches import train_batches, worker_count
from ncpipe.runs.engines.engine import Engine
from ncpipe.runs.engines.job_log import recorded_job
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.runs.engines.worker import fingerprints_of_task
from ncpipe.runs.plan import headline, plan
from ncpipe.system.console import Progress, say
from ncpipe.training.device import prepare_device


class LocalEngine(Engine):
    """Trains all tasks at once, the batches with most work first, with one progress bar.

    A task that failed is not tried again, because it would fail again. Errors are printed as they occur;
    unless the sweep keeps going, the first one is raised.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: list[Task] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        self.tasks += tasks

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        tasks, self.tasks = self.tasks, []
        settings, compute = self.settings, self.settings.compute
        device = prepare_device(compute)
        workers = worker_count(compute, device, settings.workers)
        missing = [fingerprint for task in tasks for fingerprint in fingerprints_of_task(task)]
        planned, _ = plan(missing, device, workers, settings.keep_going)
        if planned:
            say(f"{settings.name}: {headline(planned, workers, str(device))}")
        work_per_epoch = {
            fingerprint.key(): batch.work_per_epoch for batch in planned for fingerprint in batch.fingerprints
        }
        done, left = (sum(getattr(batch, name) for batch in planned) for name in ("work_done", "work_left"))
        progress = Progress(settings.name, settings.runs, done + left, settings.runs - len(missing), done)
        try:
            with recorded_job("local", [fingerprint.key() for fingerprint in missing]):
                train_batches(
                    [batch.fingerprints for batch in planned],
                    workers,
                    settings.checkpoint_seconds,
                    progress,
                    lambda fingerprint: work_per_epoch[fingerprint.key()],
                    settings.keep_going,
                )
        finally:
            progress.close()
        yield [TaskResult(task, "refused" if task.missing() else "done") for task in tasks]
