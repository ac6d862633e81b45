"""Continue each trained run by L-BFGS in float64, and measure what moves."""

from ncpipe.study import Stage, trained_runs

ITERATIONS = 300
MEASURED = ("nc1_trace_ratio", "nc2_etf", "nc3_cosine")
FURTHER = {
    "optimizer": {"name": "lbfgs", "learning_rate": 1.0, "memory": 20},
    "schedule": {"name": "constant"},
    "epochs": ITERATIONS,
    "log_every": ITERATIONS,
    "history": {"metrics": MEASURED, "at": (0, 30 / ITERATIONS, 100 / ITERATIONS, 1)},
}


def continued(experiment):
    """Measure each run at the end of training, and after 30, 100 and 300 iterations of L-BFGS."""
    for trained in trained_runs(experiment):
        for row, further in trained.train_further(**FURTHER):
            yield {
                **further.run.columns,
                "iterations": row.epoch,
                "loss": row.loss,
                "gradient_norm": further.features.gradient_norm,
                "train_error": row.train_error,
                **further.measure(MEASURED),
            }


STAGES = {"continued": Stage(continued)}
