"""Runs whose loss cannot be held against the optimum of the features model."""

import pandas as pd

NO_BOUND = "none: "


def unbounded_sentences(runs: pd.DataFrame) -> list[str]:
    """One line per experiment and reason for which `bound` names none; runs in the order given."""
    unbounded = runs[runs["bound"].str.startswith(NO_BOUND)]
    return [
        f"{experiment}: {len(own)} of {(runs['experiment'] == experiment).sum()} runs have no bound, "
        f"so no loss_gap: {str(bound).removeprefix(NO_BOUND)}"
        for (experiment, bound), own in unbounded.groupby(["experiment", "bound"], sort=False)
    ]
