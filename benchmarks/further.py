"""Where training stopped, and how much further the same objective goes from there.

Takes runs of a finished sweep from their weights on: by their own optimizer under their own schedule once
more, in their own precision, and by L-BFGS in float64. Prints a table: the loss above the optimum of the
features model (`loss_gap`) and the length of the gradient, both in float64, at the end of the run and after
each of the two.

Stand in the folder of the sweep: python benchmarks/further.py cifar10_rn1 --depths 2 13 34
"""

import argparse
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ncpipe.config.optimizer_specs import ConstantSchedule, Lbfgs
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_folder import read_state
from ncpipe.system.artifacts import PREPARED, RUNS
from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import optimal_value
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session

HEAD = ("L", "seed", "gap", "|g|", "again: gap", "|g|", "L-BFGS: gap", "|g|", "of the gap")
MEMORY = 20  # curvature pairs of L-BFGS

State = dict[str, Tensor]


@dataclass(frozen=True)
class Place:
    """A network's objective above the optimum of the features model, and the length of its gradient."""

    gap: float
    gradient: float


def further(
    run: Run, state: State, data: Prepared, iterations: int, device: torch.device, precision: str
) -> Iterator[Place]:
    """The end of a run; where its own optimizer takes it the second time; where L-BFGS takes it."""
    yield place(run, state, data, device)
    search = dataclasses.replace(
        run.spec,
        optimizer=Lbfgs("lbfgs", 1.0, MEMORY),
        schedule=ConstantSchedule("constant"),
        epochs=iterations,
        batch_size="full",
        log_every=iterations,
    )
    for spec, numbers in ((run.spec, precision), (search, "float64")):
        yield place(
            run, trained(dataclasses.replace(run, spec=spec), state, data, device, numbers), data, device
        )


def trained(run: Run, state: State, data: Prepared, device: torch.device, precision: str) -> State:
    """Where a run's training takes these weights."""
    name = f"{run.name} {run.spec.optimizer.name}"
    with tqdm(total=run.spec.epochs, desc=name, unit="epoch", disable=None, leave=False) as done:

        def count(epoch: int, _: object) -> None:
            done.update(epoch - done.n)

        return train_batch([run], data, device, precision, count, starts=[state])[0].state


def place(run: Run, state: State, data: Prepared, device: torch.device) -> Place:
    """Objective and gradient of weights on the whole training set, float64."""
    session = Session([run], data, device, torch.float64)
    session.load_weights([state])
    loss, gradient = session.loss_and_gradient(session.train)
    strength = run.spec.penalty.last_strength(run.depth)
    model, kind = run.spec.model, run.spec.loss
    if kind != "ce" and kind != "mse":
        raise InputError(f"{run.name}: loss {kind}; the least of the features model is known for ce and mse")
    optimum = optimal_value(kind, data.classes, model.width, strength, model.last_bias)
    return Place(loss.item() - optimum, gradient.norm().item())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("--depths", type=int, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=2000, help="of L-BFGS")
    options = parser.parse_args()
    params = load_params()
    device, precision = prepare_device(params.compute), params.compute.precision
    data = read_prepared(PREPARED / options.experiment)
    checksum = data_checksum(PREPARED / options.experiment)
    print(" | ".join(f"{title:>11}" for title in HEAD), flush=True)
    for depth in options.depths:
        for seed in options.seeds:
            run = params.run(options.experiment, depth, seed)
            state = read_state(RUNS / run.path, RunFingerprint(run, checksum, params.compute))
            print(f"{depth:>11} | {seed:>11}", end="", flush=True)
            gaps = []
            for found in further(run, state, data, options.iterations, device, precision):
                gaps.append(found.gap)
                print(f" | {found.gap:>11.4g} | {found.gradient:>11.4g}", end="", flush=True)
            print(f" | {min(gaps[1:]) / gaps[0]:>11.0%}", flush=True)


if __name__ == "__main__":
    main()
