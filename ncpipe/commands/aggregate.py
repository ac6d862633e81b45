"""Run the stage aggregate: combine the tables of all experiments (`ncpipe measure`) into data/results."""

from ncpipe.config.params import load_params
from ncpipe.metrics.catalogue import SINGULAR
from ncpipe.system.artifacts import GRID, RESULTS, publish_folder, write_json
from ncpipe.system.console import say
from ncpipe.tables.convergence import failure_lines, judge_runs
from ncpipe.tables.files import present, read_measured
from ncpipe.tables.gaps import unbounded_lines
from ncpipe.tables.headlines import HEADLINES, headline_series
from ncpipe.tables.keys import x_column
from ncpipe.tables.points import LAST, usable_points
from ncpipe.tables.profiles import effective_depths, layer_errors, layer_profile, separation_law
from ncpipe.tables.rates import in_columns, rate_table
from ncpipe.tables.results import curve_series, depth_series, dvc_metrics
from ncpipe.tables.selections import ALL, selected_slopes, selections
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes
from ncpipe.tables.summary import summarise


def aggregate() -> None:
    """Decide which runs converged, average over seeds and fit log-log slopes; write data/results.

    These are tables, rates.txt, metrics.json and the data of DVC's plots. The rates are printed too.
    """
    params = load_params()
    for experiment in params.sweep.experiments:
        present(GRID / f"{experiment}.csv", "grid")
    names = sorted(path.stem for path in GRID.glob("*.csv"))
    measurements, places, runs, history, gram = (
        read_measured(table, names) for table in ("measurements", "places", "runs", "history", "gram")
    )
    runs = judge_runs(runs, history, params.convergence)
    single = measurements["metric"].str.startswith(SINGULAR)
    last = measurements[~single & (measurements["layer"] == LAST)]
    summary = summarise(last, runs)
    slopes = loglog_slopes(last, runs, params.slopes)
    leave_out = leave_out_slopes(last, runs, params.slopes)
    groups = runs.groupby("experiment", sort=False)
    series = {str(name): headline_series(of_experiment, last) for name, of_experiment in groups}
    rates = in_columns(rate_table(slopes, leave_out, runs, last))
    errors = layer_errors(measurements, places, runs)
    fitted = runs.assign(selected=selections(runs)[ALL])  # claims take those of each selection
    tables = {
        "points": usable_points(last, runs),
        "summary": summary,
        "slopes": slopes,
        "slopes_leave_out": leave_out,
        "slopes_by_selection": selected_slopes(last, runs, params.slopes),
        "runs": runs,
        "history": history,
        "layers": layer_profile(measurements[~single], places, runs),
        "separation": separation_law(measurements[~single], places, fitted),
        "effective_depth": effective_depths(errors, fitted, params.effective_depth.tolerance),
        "layer_errors": errors,
        "spectra": measurements[single & (measurements["layer"] == LAST)],
        "gram": gram,
    }
    drawn = summary[summary["metric"].isin(HEADLINES)]
    tables |= {f"{x_column(runs)}/{name}": table for name, table in depth_series(drawn).items()}
    shown = {name: set(headlines.values()) for name, headlines in series.items()}
    curves = curve_series(history, runs)
    tables |= {f"curves/{name}": table for name, table in curves.items()}
    with publish_folder(RESULTS) as folder:
        for name, table in tables.items():
            path = folder / f"{name}.csv"
            path.parent.mkdir(exist_ok=True)
            table.to_csv(path, index=False, lineterminator="\n")
        write_json(folder / "metrics.json", dvc_metrics(summary, slopes, runs, shown))
        (folder / "rates.txt").write_text("".join(f"{line}\n" for line in rates), encoding="utf-8")
    for line in [*rates, *failure_lines(runs, params.convergence), *unbounded_lines(runs)]:
        say(line)
