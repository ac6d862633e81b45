"""Stage plot: the figures of the sweep."""

import pandas as pd

from ncpipe.artifacts import FIGURES, RESULTS, publish_folder
from ncpipe.errors import InputError
from ncpipe.figures.depth_sweep import depth_sweep
from ncpipe.figures.save import save_figure
from ncpipe.figures.training_curves import training_curves
from ncpipe.params import load_params


def plot() -> None:
    """data/results -> data/figures: depth_sweep and one curves_EXPERIMENT each, as PNG and SVG."""
    order = load_params().sweep.experiments
    points, summary, slopes, runs, history = (
        _read(name) for name in ("points", "summary", "slopes", "runs", "history")
    )
    labels = runs.drop_duplicates("experiment").set_index("experiment")["label"].to_dict()
    if missing := [name for name in order if name not in labels]:
        raise InputError(f"data/results: {missing[0]} is not in it; run dvc repro (stage aggregate)")
    with publish_folder(FIGURES) as folder:
        sweep = depth_sweep(points, summary, slopes, runs, {name: labels[name] for name in order})
        save_figure(sweep, folder, "depth_sweep")
        for name in order:
            own = [table[table["experiment"] == name] for table in (history, runs)]
            save_figure(training_curves(own[0], own[1], labels[name]), folder, f"curves_{name}")


def _read(name: str) -> pd.DataFrame:
    path = RESULTS / f"{name}.csv"
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage aggregate)")
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged ({reason}); delete it and run dvc repro") from None
