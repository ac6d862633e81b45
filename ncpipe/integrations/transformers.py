"""Log collapse metrics during training by callbacks of transformers' Trainer.

Trainer needs accelerate, which the extra `integrations` installs. `ncpipe.integrations.lightning` has the
callbacks of Lightning.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from ncpipe.integrations.monitor import CausalCollapseMonitor, CollapseMonitor, check_prefixes
from ncpipe.metrics.checks import check_count
from ncpipe.system.errors import InputError


class CollapseCallback(TrainerCallback):
    """Log the collapse metrics of a fixed data set before training and after every `every`-th epoch.

    Args:
        trainer: the Trainer that the callback is then added to. Its collator makes the batches, and its
            `log` receives `nc/LAYER/SPLIT/METRIC`, so that its history and every integration have them.
        classifier: name of the last nn.Linear (`score`, `classifier`).
        data, test_data: samples with labels, as for training.
        every: epochs from one measurement to the next.
        options: those of `measure_model`. Decoders need `select=last_token`.

    The first of several processes measures, so its weights must be complete (DDP, not sharded). Raises
    InputError as `measure_model` does, before the first step.
    """

    def __init__(
        self,
        trainer: Trainer,
        classifier: str | nn.Module,
        data: Dataset,
        test_data: Dataset | None = None,
        every: int = 1,
        **options: Any,
    ) -> None:
        self.trainer = trainer
        test_loader = None if test_data is None else _loader(trainer, "test_data", test_data)
        self.monitor = CollapseMonitor(
            classifier, _loader(trainer, "data", data), test_loader, every, **options
        )

    monitor: CollapseMonitor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        callbacks = self.trainer.callback_handler.callbacks
        check_prefixes(other.monitor for other in callbacks if isinstance(other, CollapseCallback))
        if state.global_step == 0:  # otherwise training resumes from a checkpoint
            self._log(state, control, others["model"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        assert state.epoch is not None
        epoch = round(state.epoch, 6)
        if not has_length(others["train_dataloader"]):  # then an epoch is a share of all steps
            epoch = math.ceil(epoch)
        if self.monitor.due(epoch):
            self._log(state, control, others["model"])

    def _log(self, state: TrainerState, control: TrainerControl, model: nn.Module) -> None:
        if state.is_world_process_zero:
            should_log = control.should_log  # `log` clears it, and the epoch's loss would not be logged
            self.trainer.log(self.monitor.values(model, epoch=state.epoch))
            control.should_log = should_log


class CausalCollapseCallback(CollapseCallback):
    """Log the next-token metrics of a causal language model on a fixed sample (`measure_causal_lm`).

    Args:
        data: the validation set. samples: number of sequences to draw from it with `seed`; None takes all.
        every: epochs from one measurement to the next. steps: training steps instead of epochs.
        options: those of `measure_causal_lm`.

    Raises InputError as `measure_causal_lm` does, before the first step.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Dataset,
        samples: int | None = None,
        every: int = 1,
        steps: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.trainer = trainer
        check_data("data", data)
        loader = _loader(trainer, "data", sample_subset(data, samples, seed))
        self.monitor = CausalCollapseMonitor(loader, every, steps, seed=seed, **options)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        assert isinstance(self.monitor, CausalCollapseMonitor)
        if self.monitor.due_at_step(state.global_step):
            self._log(state, control, others["model"])


def sample_subset(data: Dataset, samples: int | None, seed: int) -> Dataset:
    """Return `samples` entries of a data set, drawn with the seed and in its order; None returns all."""
    size = len(data)  # type: ignore[arg-type]
    if samples is None:
        return data
    check_count("samples", samples, "sequences")
    if samples >= size:
        return data
    order = torch.randperm(size, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return Subset(data, sorted(order[:samples].tolist()))


def check_data(name: str, data: Dataset) -> None:
    """Raise InputError unless the data set has a length and a sample."""
    if not hasattr(data, "__len__") or not len(data):
        raise InputError(f"{name}: needs a length and at least one sample, because it is read twice")


def _loader(trainer: Trainer, name: str, data: Dataset) -> DataLoader:
    """Return a loader of all samples in each process, with the columns that Trainer passes to the model.

    Trainer's own loaders are as before: with persistent workers it would keep the one made here as that of
    its evaluation set, or give the kept one back.
    """
    check_data(name, data)
    args, accelerator = trainer.args, trainer.accelerator
    persistent, prepared = args.dataloader_persistent_workers, list(accelerator._dataloaders)
    args.dataloader_persistent_workers = False
    try:
        made = trainer.get_eval_dataloader(data)
    finally:
        args.dataloader_persistent_workers = persistent
        accelerator._dataloaders[:] = prepared
    return DataLoader(made.dataset, args.eval_batch_size, collate_fn=made.collate_fn)
