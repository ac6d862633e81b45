"""Collapse as a Lightning callback; needs lightning (the extra `doors`) or pytorch-lightning."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from ncpipe.integrations.watch import CausalWatch, Watch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import Callback, LightningModule, Trainer


class CollapseCallback(Callback):
    """Measures before training and after every `every`-th epoch, on fixed batches, for each of the loggers.

    classifier: name of the last nn.Linear in the LightningModule (`net.fc`). loader, test_loader, options: as
    in `measure_model`; the module itself is called unless `forward=` says otherwise. Loggers are given
    `nc/LAYER/SPLIT/METRIC`, in float64, at the number of steps taken; after epochs, they are in
    `trainer.callback_metrics` too, for checkpoints and early stopping. Of several processes the first one
    measures: weights must be whole there (DDP, not sharded). Raises InputError as `measure_model` does,
    before the first step.
    """

    watch: Watch | CausalWatch

    def __init__(
        self,
        classifier: str | nn.Module,
        loader: Iterable[Any],
        test_loader: Iterable[Any] | None = None,
        every: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        self.watch = Watch(classifier, loader, test_loader, every, options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0:  # else the run goes on from a checkpoint
            self._log(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.watch.due(trainer.current_epoch + 1):
            values = self._log(trainer, pl_module)
            pl_module.log_dict(values, logger=False, sync_dist=True, batch_size=1)

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        values = self.watch.values(pl_module) if trainer.is_global_zero else {}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
        return trainer.strategy.broadcast(values)


class CausalCollapseCallback(CollapseCallback):
    """The same of a causal language model, next token by next token (`measure_causal_lm`).

    loader: fixed batches of the validation set, without shuffling. every: epochs from one measurement to the
    next; steps: optimizer steps in their place. options: those of `measure_causal_lm`; without `unembedding`
    the first module of the LightningModule that names its own, as transformers' models do, is run.
    """

    def __init__(
        self, loader: Iterable[Any], every: int = 1, steps: int | None = None, **options: Any
    ) -> None:
        Callback.__init__(self)
        self.watch = CausalWatch(loader, every, steps, options)
        self._last = 0  # step of the newest measurement: batches that accumulate gradients take none

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(self.watch, CausalWatch)
        if trainer.global_step != self._last and self.watch.due_at_step(trainer.global_step):
            self._last = trainer.global_step
            self._log(trainer, pl_module)
