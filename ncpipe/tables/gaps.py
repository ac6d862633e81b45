"""Report runs whose loss cannot be compared with the optimum of the features model."""

import pandas as pd

HOLDS = "holds"


def unbounded_lines(runs: pd.DataFrame) -> list[str]:
    """Return a line for each experiment and reason why runs have no bound, in the order of `runs`."""
    unbounded = runs[runs["bound"] != HOLDS].astype({"bound_detail": object}).fillna({"bound_detail": ""})
    return [
        f"{experiment}: {len(group)} of {(runs['experiment'] == experiment).sum()} runs have no bound, "
        f"so no loss_gap: {bound}{_details(group['bound_detail'])}"
        for (experiment, bound), group in unbounded.groupby(["experiment", "bound"], sort=False)
    ]


def _details(details: pd.Series) -> str:
    """Return the details of the first run, marked as an example if other runs have different ones."""
    first, others = details.iloc[0], details.nunique() - 1
    if not first:
        return ""
    return f" (such as: {first}; the others in runs.csv)" if others else f" ({first})"
