"""The engine that trains here, in threads: what `ncpipe sweep` does by itself."""

from collections.abc import Iterator, Sequence

from ncpipe.console import Progress, say
from ncpipe.scheduling.batches import train_batches, worker_count
from ncpipe.scheduling.engines.options import Settings
from ncpipe.scheduling.engines.work import Ended, Work
from ncpipe.scheduling.engines.worker import stamps_of_work
from ncpipe.scheduling.plan import headline, plan_all
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
        planned, errors = plan_all(todo, place, count, settings.keep_going)
        say(f"sweep: {headline(planned, count, str(place))}")
        weights = {s.key(): batch.seconds / len(batch.stamps) for batch in planned for s in batch.stamps}
        spent, left = (sum(getattr(batch, name) for batch in planned) for name in ("spent", "total"))
        progress = Progress("sweep", settings.runs, spent + left, settings.runs - len(todo), spent)
        batches = [batch.stamps for batch in planned]
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
