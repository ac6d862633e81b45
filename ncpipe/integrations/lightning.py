"""Log collapse metrics during training by callbacks of Lightning.

They need lightning (the extra `integrations`) or pytorch-lightning. `ncpipe.integrations.transformers` has
those of transformers' Trainer.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from ncpipe.integrations.monitor import CausalCollapseMonitor, CollapseMonitor, check_prefixes
from ncpipe.metrics.loaders import Forward, call

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import Callback, LightningModule, Trainer


class _LoggingCallback(Callback):
    """Log what a monitor, which a subclass is too, measures before training and after epochs."""

    options: dict[str, Any]
    due: Callable[[float], bool]
    values: Callable[..., dict[str, float]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_prefixes(other for other in trainer.callbacks if isinstance(other, CollapseMonitor))
        if trainer.global_step == 0:  # otherwise training resumes from a checkpoint
            self._log(trainer, pl_module, 0)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.due(trainer.current_epoch + 1):
            values = self._log(trainer, pl_module, trainer.current_epoch + 1)
            pl_module.log_dict(values, logger=False, sync_dist=True, batch_size=1)

    def _log(self, trainer: Trainer, pl_module: LightningModule, epoch: float) -> dict[str, float]:
        forward = _in_precision(trainer, self.options.get("forward") or call)
        values = self.values(pl_module, forward, epoch=epoch) if trainer.is_global_zero else {}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
        return trainer.strategy.broadcast(values)


class CollapseCallback(CollapseMonitor, _LoggingCallback):
    """Log the collapse metrics of fixed batches before training and after every `every`-th epoch.

    Args:
        classifier: name of the last nn.Linear in the LightningModule (`net.fc`).
        loader, test_loader, options: as in `measure_model`. The module itself is called unless `forward=`
            is given.
        every: epochs from one measurement to the next.

    The model runs in the trainer's `precision`, uncompiled. Every logger receives `nc/LAYER/SPLIT/METRIC` in
    float64 at the number of steps taken. After epochs the values are in `trainer.callback_metrics` too, for
    checkpoints and early stopping. The first of several processes measures, so its weights must be complete
    (DDP, not sharded). Raises InputError as `measure_model` does, before the first step.
    """


class CausalCollapseCallback(CausalCollapseMonitor, _LoggingCallback):
    """Log the next-token metrics of a causal language model (`measure_causal_lm`).

    Args:
        loader: fixed batches of the validation set, without shuffling.
        every: epochs from one measurement to the next. steps: optimizer steps instead of epochs.
        options: those of `measure_causal_lm`. Without `unembedding`, the first submodule that names its
            own is run, as transformers' models do.
    """

    _last = 0  # step of the latest measurement; batches that accumulate gradients take no step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self._last and self.due_at_step(trainer.global_step):
            self._last = trainer.global_step
            part = (batch_idx + 1) / trainer.num_training_batches
            self._log(trainer, pl_module, trainer.current_epoch + part)


def _in_precision(trainer: Trainer, run: Forward) -> Forward:
    """Return a function that calls a model as `run` does, in the trainer's precision.

    As in its own loops, inputs are converted, and autocast and the type of new tensors are set.
    """
    plugin = trainer.precision_plugin

    def forward(model: nn.Module, inputs: Any) -> Any:
        with plugin.forward_context():
            return run(model, plugin.convert_input(inputs))

    return forward
