"""Names for the study.py of a study: what an entry of its tables, and a stage of its own, is made of.

    from ncpipe.study import Count, Stage, trained_runs

docs/extending.md has a line for each; a study imports nothing else of the package but `ncpipe` itself. Names
are imported when they are first used, so that a study without networks does not wait for PyTorch. Types of
the names are in study.pyi.
"""

import importlib

# The modules that define the names, and modules that are names themselves.
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
    "Prepared": "datasets.prepared",
    "Run": "config.run",
    "Split": "datasets.prepared",
    "Stage": "config.stages",
    "TrainedRun": "features.trained_run",
    "Training": "training.own_loop",
    "cross_entropy": "models.loss_functions",
    "half_squared_error": "models.loss_functions",
    "init_weights": "models.network",
    "load_params": "config.params",
    "make_run": "config.params",
    "patches": "models.inputs",
    "prepare_data": "datasets.prepare",
    "seeded_generator": "system.randomness",
    "stage_table": "tables.stage_tables",
    "train_runs": "runs.trained_runs",
    "trained_runs": "runs.trained_runs",
}
MODULES = {
    "drawing": "figures.drawing",
    "frames": "theory.frames",
    "gufm": "theory.gufm",
    "numerical": "theory.numerical",
    "regression": "theory.regression",
    "ufm": "theory.ufm",
}
__all__ = [*HOMES, *MODULES]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    module: object = importlib.import_module(f"ncpipe.{MODULES.get(name) or HOMES[name]}")
    value = module if name in MODULES else getattr(module, name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
