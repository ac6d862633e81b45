"""Measure neural collapse: of arrays, files and PyTorch models here, of whole sweeps by the program `ncpipe`.

    import ncpipe as nc

    values = nc.measure_model(model, "fc", train_loader, test_loader)
    values["last", "test", "nc1_trace_ratio"]

Names are imported when they are first used, so that importing the package takes no time and no PyTorch. Types
of the names are in __init__.pyi.
"""

import importlib

__version__ = "0.2.0"
# The modules that define the names. `functional` is a module itself.
_MODULES = {
    "CausalCollapseMonitor": "integrations.monitor",
    "CollapseMonitor": "integrations.monitor",
    "InputError": "system.errors",
    "Measurement": "metrics.measurements",
    "MeasurementWarning": "system.errors",
    "Measurements": "metrics.measurements",
    "channels_first": "models.hook_points",
    "channels_last": "models.hook_points",
    "collect_features": "metrics.hooks",
    "functional": "metrics",
    "last_token": "models.hook_points",
    "measure": "metrics.table",
    "measure_batches": "metrics.table",
    "measure_causal_lm": "metrics.causal",
    "measure_file": "metrics.file",
    "measure_model": "metrics.hooks",
    "measure_multilabel_model": "metrics.hooks",
    "measure_regression": "metrics.regression",
    "measure_regression_model": "metrics.hooks",
    "measure_tokens": "metrics.table",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"{__name__}.{_MODULES[name]}"
    if name == "functional":
        value: object = importlib.import_module(f"{module}.{name}")
    else:
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
