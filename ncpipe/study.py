"""Names for the study.py of a study: what an entry of its tables, and a stage of its own, is made of.

    from ncpipe.study import Count, Stage, trained_runs

docs/extending.md has a line for each; a study imports nothing else of the package. Names are imported when
they are first used, so that a study without networks does not wait for PyTorch. Types of the names are in
study.pyi.
"""

import pkgutil

# The modules that define the names.
HOMES = {
    "Bound": "config.bounds",
    "Count": "config.bounds",
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
    "Stage": "config.stages",
    "TrainedRun": "runs.trained_runs",
    "Training": "training.own_loop",
    "channels_last": "models.hook_points",
    "cross_entropy": "models.loss_functions",
    "init_weights": "models.network",
    "load_params": "config.params",
    "measure": "metrics.table",
    "seeded_generator": "system.randomness",
    "stage_table": "tables.stage_tables",
    "trained_runs": "runs.trained_runs",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(HOMES)}")
    value: object = pkgutil.resolve_name(f"ncpipe.{HOMES[name]}:{name}")
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
