"""Stage fetch: an experiment's data set, downloaded or read from a mirror, balanced and normalised."""

from pathlib import Path

from ncpipe.artifacts import PREPARED, RAW
from ncpipe.console import say
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import write_prepared
from ncpipe.params import load_params


def fetch(experiment: str, mirror: Path | None = None) -> None:
    """experiments.EXPERIMENT.data of params.yaml -> data/prepared/EXPERIMENT."""
    spec = load_params().experiment(experiment).data
    data = prepare(spec, RAW, mirror, progress=True)
    write_prepared(PREPARED / experiment, data)
    say(
        f"fetch {experiment}: {spec.source}, {len(data.train)} training and {len(data.test)} test samples, "
        f"{data.classes} classes"
    )
