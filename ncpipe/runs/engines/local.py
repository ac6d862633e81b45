"""The engine that trains in threads of this process."""

from collections.abc import Iterator, Sequence

from ncpipe.runs.batches import groups, in_memory, train_batches, worker_count
from ncpipe.runs.engines.job_log import kept_log
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.runs.engines.worker import fingerprints_of_task
from ncpipe.runs.plan import headline, plan_all
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.console import Progress, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.device import prepare_device


class LocalEngine:
    """Trains all tasks at once, the longest batches first, with one progress bar.

    What fails here would fail here again. Unless the sweep is to keep going, the first error is raised.
    """

    tries_again = False
    outlives = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: list[Task] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        self.tasks += tasks

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        tasks, self.tasks = self.tasks, []
        settings, compute = self.settings, self.settings.compute
        place = prepare_device(compute)
        count = worker_count(compute, place, settings.workers)
        todo = [fingerprint for task in tasks for fingerprint in fingerprints_of_task(task)]
        errors: list[InputError] = []
        if not settings.planned:
            batches = [batch for group in groups(todo) for batch in in_memory(group, place, count)]
            weights = dict.fromkeys((fingerprint.key() for fingerprint in todo), 1.0)
            spent = float(sum(epochs_done(checkpoint_of(fingerprint)) for fingerprint in todo))
            left = sum(fingerprint.run.spec.epochs for fingerprint in todo) - spent
        else:
            planned, errors = plan_all(todo, place, count, settings.keep_going)
            say(f"{settings.name}: {headline(planned, count, str(place))}")
            batches = [batch.fingerprints for batch in planned]
            weights = {
                s.key(): batch.seconds / len(batch.fingerprints)
                for batch in planned
                for s in batch.fingerprints
            }
            spent, left = (sum(getattr(batch, name) for batch in planned) for name in ("spent", "total"))
        progress = Progress(settings.name, settings.runs, spent + left, settings.runs - len(todo), spent)
        try:
            with kept_log("local", [fingerprint.key() for fingerprint in todo], compute.threads * count):
                errors += train_batches(
                    batches,
                    count,
                    settings.checkpoint_seconds,
                    progress,
                    lambda fingerprint: weights[fingerprint.key()],
                    settings.keep_going,
                )
        finally:
            progress.close()
        reason = "; ".join(map(str, errors))
        yield [
            TaskResult(task, "refused", reason) if task.missing() else TaskResult(task, "done")
            for task in tasks
        ]

    def collect(self, result: TaskResult) -> None:
        """Do nothing: the runs are in the store already."""

    def cancel(self) -> None:
        """Do nothing: an interrupt has ended the training."""

    def more_memory(self, task: Task) -> Task | None:
        """Return None: this machine has no more."""
        return None
