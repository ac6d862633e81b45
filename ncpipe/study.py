"""Names for the study.py of a study: what an entry of its tables, and a stage of its own, is made of.

    from ncpipe.study import Count, Stage, trained_runs

docs/extending.md has a line for each; a study imports nothing else of the package. Names are imported when
they are first used, so that a study without networks does not wait for PyTorch. Types of the names are in
study.pyi.
"""

import pkgutil

# The modules that define the names, some by another name.
HOMES = {
    "Bound": "config.bounds",
    "Count": "config.bounds",
    "Decay": "theory.ufm",
    "Family": "models.network",
    "Fraction": "config.bounds",
    "Hooked": "training.hooked",
    "Index": "config.bounds",
    "InputError": "system.errors",
    "Layer": "models.network",
    "Metric": "metrics.catalogue",
    "Network": "models.network",
    "NonNegative": "config.bounds",
    "OwnData": "config.specs",
    "OwnLoss": "config.specs",
    "OwnModel": "config.specs",
    "OwnOptimizer": "config.specs",
    "OwnTraining": "config.specs",
    "Positive": "config.bounds",
    "RegressionOptimum": "theory.regression",
    "Stage": "config.stages",
    "TrainedRun": "runs.trained_runs",
    "Training": "training.own_loop",
    "channels_last": "models.hook_points",
    "covariance": "metrics.nrc",
    "cross_entropy": "models.loss_functions",
    "descend": "theory.numerical",
    "half_squared_error": "models.loss_functions",
    "init_weights": "models.network",
    "load_params": "config.params",
    "measure": "metrics.table",
    "minimise_ufm": "theory.numerical",
    "patches": "models.inputs",
    "regression_optimum": "theory.regression",
    "seeded_generator": "system.randomness",
    "simplex_frame": "theory.frames",
    "stage_table": "tables.stage_tables",
    "trained_runs": "runs.trained_runs",
    "ufm_optimum": "theory.ufm:optimum",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(HOMES)}")
    home, _, other = HOMES[name].partition(":")
    value: object = pkgutil.resolve_name(f"ncpipe.{home}:{other or name}")
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
