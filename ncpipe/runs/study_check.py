"""Check a study in seconds, before anything trains: metrics, claims, files, and one step of its own code.

The stage `code` runs this (`ncpipe.commands.code`). `ncpipe.runs.trial_step` takes the step.
"""

from pathlib import Path

from ncpipe.config.arguments import argument_names
from ncpipe.config.experiment import Data, Experiment
from ncpipe.config.optimizer_specs import TorchOptimizer
from ncpipe.config.params import Params
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.config.sources.next_tokens import NextTokenData
from ncpipe.config.sources.reviews import TextData
from ncpipe.config.study import Study, mistake, study_errors
from ncpipe.config.study_files import check_reruns
from ncpipe.metrics.catalogue import CATALOGUE, ENTRIES, REGRESSION, TAGS, one_of_a_spectrum
from ncpipe.metrics.study_metrics import KEPT_ON_THE_WAY, own_metrics
from ncpipe.runs.code_digests import picked_entries
from ncpipe.system.artifacts import CLAIMS_FILE
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, cut, shown, suggest


def check_study(params: Params) -> None:
    """Raise InputError for the first mistake that a run would meet later."""
    check_metrics(params)
    if CLAIMS_FILE.is_file():
        from ncpipe.claims.ledger import load_claims  # pandas takes half a second to import
        from ncpipe.claims.quantities import Computed, check_calls

        claims = load_claims(CLAIMS_FILE, lambda: params)
        check_calls((claim for claim in claims if isinstance(claim, Computed)), params.study.calls)
    for name in params.sweep.experiments:
        spec = params.experiments[name]
        if spec.training:
            continue
        if isinstance(spec.optimizer, TorchOptimizer):
            import torch

            from ncpipe.training.torch_optimizers import make_optimizer

            make_optimizer(spec.optimizer, [torch.nn.Parameter(torch.zeros(2, 2))])
        check_files(name, spec.data)
    study = params.study
    if not any(study.tables.values()):
        return
    from ncpipe.runs import trial_step  # imports torch

    metrics_checked = False
    for name in params.sweep.experiments:
        spec = params.experiments[name]
        if spec.training:
            trial_step.check_own_loop(params.runs_of(name)[0], params.compute)
            continue
        if picked_entries(spec) or (study.metrics and not metrics_checked):
            runs = params.runs_of(name)
            say(f"code: building the networks of {name}, and taking one step with a few samples")
            with study_errors():
                trial_step.check_runs([runs[0], runs[-1]])
            metrics_checked = True


def check_files(experiment: str, spec: Data) -> None:
    """Raise InputError unless the data's own file exists and DVC sees its changes; likewise a tokenizer's."""
    if isinstance(spec, ArraysData | NextTokenData) and spec.file is not None:
        check_reruns("fetch", spec.file)
        if not Path(spec.file).is_file():
            raise InputError(f"experiments.{experiment}.data.file: {spec.file} not found; correct the path")
    if isinstance(spec, TextData) and Path(spec.tokenizer).exists():
        check_reruns("fetch", spec.tokenizer)


def check_metrics(params: Params) -> None:
    """Raise InputError for metrics of `history` that cannot be computed from the last layer's features."""
    mistakes = [
        cut(f"experiments.{name}.history.metrics: unknown {shown(metric)}; {suggest(metric, names)}")
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for names in [_of_last_layer(params.experiments[name], params.study)]
        for metric in history.metrics
        if metric not in names
    ]
    mistakes += [
        f"experiments.{name}.history.metrics: {metric.name} takes {', '.join(sorted(others))}, which is not "
        f"kept during training; it can take {', '.join(sorted(KEPT_ON_THE_WAY))}"
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for metric, function in own_metrics(params.study).items()
        if metric.name in history.metrics and (others := set(argument_names(function)) - KEPT_ON_THE_WAY)
    ]
    if params.study.metrics:
        from ncpipe.runs.run_folder import COLUMNS  # imports torch

        for metric in own_metrics(params.study):
            if metric.name in (*COLUMNS, "experiment", "depth", "seed", "x"):
                problem = f"the metric {metric.name!r} has the name of a column of tables; take another"
                raise mistake("METRICS", problem)
    if mistakes:
        raise InputError("\n".join(mistakes))


def _of_last_layer(spec: Experiment, study: Study) -> list[str]:
    """Return the metrics that features and weights of the last layer have, by what the targets are."""
    # The last one of regression needs the whole run.
    by_targets = {"classes": ENTRIES, "tags": (*ENTRIES, *TAGS), "vectors": REGRESSION[:-1]}
    metrics = (*by_targets["classes" if spec.training else spec.data.targets], *own_metrics(study))
    ranks = [name for name in CATALOGUE if name.endswith("rank_weights")]
    names = [metric.name for metric in metrics if not one_of_a_spectrum(metric.name)]
    return list(dict.fromkeys([*names, *ranks]))
