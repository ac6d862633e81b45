"""Run the stage counterexample: S25 App. C's example."""

import pandas as pd

from ncpipe.config.params import load_params
from ncpipe.papers.outputs import COUNTEREXAMPLE
from ncpipe.papers.s25.study_rows import counterexample_rows
from ncpipe.system.artifacts import publish_file
from ncpipe.training.device import fix_sums


def write_counterexample() -> None:
    """Compute the counterexample of S25, Appendix C: with blocks of two layers, collapse is not optimal."""
    params = load_params()
    fix_sums(params.compute.threads)
    study = params.study().counterexample
    run = params.run(study.experiment, study.depths[0], study.seed)
    rows = counterexample_rows(run, study.classes, study.per_class, study.sizes, study.depths, study.seed)
    with publish_file(COUNTEREXAMPLE) as partial:
        pd.DataFrame(rows).to_csv(partial, index=False, lineterminator="\n")
