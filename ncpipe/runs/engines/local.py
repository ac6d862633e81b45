"""The engine that trains here, in threads."""

from collections.abc import Iterator, Sequence

from ncpipe.runs.batches import groups, in_memory, train_batches, worker_count
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.work import Ended, Work
from ncpipe.runs.engines.worker import stamps_of_work
from ncpipe.runs.plan import headline, plan_all
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.console import Progress, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.device import prepare_device


class LocalEngine:
    """Trains all work at once, its batches longest first, with one bar for all of it.

    What fails here would fail here again. Where the sweep is not to keep going, the first error is raised as
    it is.
    """

    tries_again = False
    outlives = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.works: list[Work] = []

    def submit(self, works: Sequence[Work]) -> None:
        self.works += works

    def watch(self, wait: bool = True) -> Iterator[Ended]:
        works, self.works = self.works, []
        settings = self.settings
        place = prepare_device(settings.compute)
        count = worker_count(settings.compute, place, settings.workers)
        todo = [stamp for work in works for stamp in stamps_of_work(work)]
        errors: list[InputError] = []
        if not settings.planned:
            batches = [batch for group in groups(todo) for batch in in_memory(group, place, count)]
            weights = dict.fromkeys((stamp.key() for stamp in todo), 1.0)
            spent = float(sum(epochs_done(checkpoint_of(stamp)) for stamp in todo))
            left = sum(stamp.run.spec.epochs for stamp in todo) - spent
        else:
            planned, errors = plan_all(todo, place, count, settings.keep_going)
            say(f"{settings.name}: {headline(planned, count, str(place))}")
            batches = [batch.stamps for batch in planned]
            weights = {s.key(): batch.seconds / len(batch.stamps) for batch in planned for s in batch.stamps}
            spent, left = (sum(getattr(batch, name) for batch in planned) for name in ("spent", "total"))
        progress = Progress(settings.name, settings.runs, spent + left, settings.runs - len(todo), spent)
        try:
            errors += train_batches(
                batches,
                count,
                settings.checkpoint_seconds,
                progress,
                lambda stamp: weights[stamp.key()],
                settings.keep_going,
            )
        finally:
            progress.close()
        reason = "; ".join(map(str, errors))
        for work in works:
            yield Ended(work, "refused", reason) if work.missing() else Ended(work, "done")

    def collect(self, ended: Ended) -> None:
        """They are in the store already."""

    def cancel(self) -> None:
        """Who interrupts the training has ended it."""
