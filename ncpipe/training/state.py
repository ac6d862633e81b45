"""Hold runs of one shape while they train: weights, data, the streams they draw from, and which still train.

`ncpipe.training.stack` is the networks, `objective` their loss; `session` chooses the steps.

S  runs    P  numbers per run    B  samples of a batch    N  training samples
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ncpipe.config.experiment import Experiment
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_network, input_shape, prepare_split
from ncpipe.models.inputs import width_of
from ncpipe.models.network import mixes_samples
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.training.objective import (
    Outputs,
    compares_samples,
    fit_times_samples,
    head_input_strengths,
    outputs_of,
    penalty,
    penalty_strengths,
    singleton_class_error,
)
from ncpipe.training.schedules import factor
from ncpipe.training.stack import Stack

EVALUATION_ROWS = 50_000  # samples x tokens of each run in a forward pass without gradients
# Rows x width of one run in a forward and backward pass; gradients of several passes are summed. On the CPU a
# layer's values then stay in the cache: with 20 times as many, L-T11 takes twice as long. Other devices need
# larger products to be busy. A constant, so that a run's rounding does not depend on the runs beside it.
CHUNK_NUMBERS = {"cpu": 2**16}
CHUNK_NUMBERS_ELSEWHERE = 2**21


class TrainingState:
    """S runs of one shape in training: what the steps of an optimizer read and change."""

    def __init__(self, runs: Sequence[Run], data: Prepared, device: torch.device, dtype: torch.dtype) -> None:
        self.runs, self.spec = runs, runs[0].spec
        if reason := singleton_class_error(self.spec.loss, data):
            raise InputError(f"experiments.{runs[0].experiment}.loss: {reason}")
        # Only a network of a study.py may draw at random while it trains.
        seeds = [run.seed for run in runs] if self.spec.model.study_entry else None
        self.stack = Stack([build_network(run, data) for run in runs], device, dtype, seeds)
        self.strengths = penalty_strengths(self.stack, runs)
        self.feature_strengths = head_input_strengths(self.stack, runs)
        splits = {
            name: prepare_split(split, data.kind, self.spec.model, device, dtype)
            for name, split in data.splits()
        }
        self.train, self.test = splits["train"], splits.get("test")
        self.counts = self.train.counts(data.classes)
        self.chunk = max(1, EVALUATION_ROWS // input_shape(data, self.spec.model).rows)
        self.at_a_time = samples_at_a_time(self.stack, self.spec, data, device)
        samples = len(self.train)
        self.batch = samples if self.spec.batch_size == "full" else min(self.spec.batch_size, samples)
        self.steps_per_epoch = math.ceil(samples / self.batch)
        self.orders = [seeded_generator(run.seed, "order") for run in runs]
        self.moves = [seeded_generator(run.seed, "augmentation") for run in runs]
        self.finite = self.stack.values.clone()  # the newest weights whose loss is known to be finite
        self.alive = torch.ones(len(runs), dtype=torch.bool, device=device)
        self.diverged_at = torch.full_like(self.alive, -1, dtype=torch.long)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)  # the one that is being trained
        # Elsewhere reading a number waits for the device, which a recorded step cannot do (CudaGraphStep).
        self.can_sync = device.type == "cpu"
        self.epochs_done = self.step = 0

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace the random initial weights of each run by others, by name."""
        for index, of_run in enumerate(weights):
            for name in self.stack.names:
                self.stack.view(self.stack.values, name)[index].copy_(of_run[name])
        self.finite.copy_(self.stack.values)

    def outputs(self, samples: Split) -> Outputs:
        """Return what the objective reads of a batch."""
        return outputs_of(self.stack, samples, self.counts)

    def loss_and_gradient(self, samples: Split) -> tuple[Tensor, Tensor]:
        """Return the regularised loss (S,) of each run on a batch and its gradient (S, P)."""
        loss = self.stack.values.new_zeros(len(self.runs))
        gradient = torch.zeros_like(self.stack.values)
        for place, part in enumerate(samples.parts(self.at_a_time)):
            self.stack.step = f"{self.step} {place}"
            with torch.enable_grad():
                outputs = self.outputs(part)
                fit = fit_times_samples(outputs, self.spec.loss) / samples.predictions
                if self.feature_strengths is not None:
                    fit = fit + self.penalty_of_features(self.penalised_squares(outputs), samples)
                self.stack.add_gradient(fit.sum(), gradient)
            loss = loss + fit.detach()
        gradient.addcmul_(self.strengths, self.stack.values)
        return loss + penalty(self.stack.values, self.strengths), gradient

    def penalised_squares(self, outputs: Outputs) -> Tensor:
        """Return the sum of |h|^2 over samples, (S,); 0 where features are not penalised."""
        if self.feature_strengths is None:
            return outputs.logits.new_zeros(())
        assert outputs.head_input is not None
        return outputs.head_input.square().sum((1, 2))

    def penalty_of_features(self, squares: Tensor, samples: Split) -> Tensor:
        """Return lambda_H/2 |H|^2 of each run, (S,), estimated from the sum of |h|^2 over a batch."""
        if self.feature_strengths is None:
            return squares
        return self.feature_strengths * (len(self.train) / len(samples) / 2) * squares

    def drop_diverged(self, loss: Tensor) -> None:
        """Stop runs whose loss (S,) is not finite, and restore their last weights with a finite loss."""
        finite = loss.isfinite()
        if self.all_true(finite):
            self.finite.copy_(self.stack.values)
            return
        diverged = self.alive & ~finite
        self.stack.values.copy_(torch.where(diverged.unsqueeze(1), self.finite, self.stack.values))
        self.diverged_at.copy_(torch.where(diverged, self.epoch, self.diverged_at))
        self.alive &= ~diverged
        self.finite.copy_(self.stack.values)

    def all_true(self, flags: Tensor) -> bool:
        """Return whether all flags (S,) are set; False on devices where reading them would wait."""
        return self.can_sync and bool(flags.all())

    def rates_at(self, step: int) -> list[float]:
        """Return each run's learning rate at a step."""
        now = factor(self.spec.schedule, step, self.spec.epochs * self.steps_per_epoch)
        return [r.spec.optimizer.learning_rate * now for r in self.runs]


def samples_at_a_time(stack: Stack, spec: Experiment, data: Prepared, device: torch.device) -> int:
    """Return how many samples of a batch pass through the network at a time on `device`.

    All of them where a sample's gradient depends on the others, through batch norm or a loss that compares
    samples, and where the samples' features are parameters.
    """
    if compares_samples(spec.loss) or mixes_samples(stack.network) or data.kind == "free":
        return len(data.train)
    numbers = CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS_ELSEWHERE)
    return max(1, numbers // (input_shape(data, spec.model).rows * width_of(spec.model)))
