"""Collapse as a callback of transformers' Trainer; needs accelerate, as Trainer does (the extra `doors`)."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ncpipe.integrations.watch import CausalWatch, Watch
from ncpipe.system.errors import InputError


class CollapseCallback(TrainerCallback):
    """Measures before training and after every `every`-th epoch, on a fixed data set, for each integration.

    trainer: the one that it is then added to; its collator makes the batches, of the evaluation's size, and
    its `log` is told `nc/LAYER/SPLIT/METRIC`, so that the history and every integration have them.
    classifier: name of the last nn.Linear (`score`, `classifier`). data, test_data: samples with labels, as
    for training. options: those of `measure_model`; decoders need `select=last_token`. Of several processes
    the first one measures: weights must be whole there (DDP, not sharded). Raises InputError as
    `measure_model` does, before the first step.
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
        self.watch = Watch(classifier, _loader(trainer, "data", data), test_loader, every, options)

    watch: Watch | CausalWatch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if state.global_step == 0:  # else the run goes on from a checkpoint
            self._log(state, control, others["model"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if state.epoch is not None and self.watch.due(round(state.epoch, 6)):
            self._log(state, control, others["model"])

    def _log(self, state: TrainerState, control: TrainerControl, model: nn.Module) -> None:
        if state.is_world_process_zero:
            own = control.should_log  # which `log` takes back: the epoch's loss would not be logged
            self.trainer.log(self.watch.values(model))
            control.should_log = own


class CausalCollapseCallback(CollapseCallback):
    """The same of a causal language model, next token by next token (`measure_causal_lm`), on a fixed sample.

    data: the validation set, of which `samples` sequences are drawn by `seed`; None takes all. every: epochs
    from one measurement to the next; steps: training steps in their place. options: those of
    `measure_causal_lm`. Raises InputError as that does, before the first step.
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
        loader = _loader(trainer, "data", drawn(data, samples, seed))
        self.watch = CausalWatch(loader, every, steps, options | {"seed": seed})

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        assert isinstance(self.watch, CausalWatch)
        if self.watch.due_at_step(state.global_step):
            self._log(state, control, others["model"])


def drawn(data: Dataset, samples: int | None, seed: int) -> Dataset:
    """`samples` entries of a data set, drawn by the seed, in its order; all of them for None."""
    size = len(data)  # type: ignore[arg-type]
    if samples is None or samples >= size:
        return data
    if samples < 1:
        raise InputError(f"samples: a whole number of sequences, 1 or more, not {samples}")
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return Subset(data, sorted(order[:samples].tolist()))


def check_data(name: str, data: Dataset) -> None:
    """Raise InputError unless the data set has a length and a sample."""
    if not hasattr(data, "__len__") or not len(data):
        raise InputError(f"{name}: a data set with a length and at least one sample, to be run through twice")


def _loader(trainer: Trainer, name: str, data: Dataset) -> DataLoader:
    """Of all samples in each process, with the columns that Trainer gives the model."""
    check_data(name, data)
    made = trainer.get_eval_dataloader(data)
    return DataLoader(made.dataset, trainer.args.eval_batch_size, collate_fn=made.collate_fn)
