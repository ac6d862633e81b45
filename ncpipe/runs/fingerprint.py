"""What a run's result depends on, as plain values: how a finished folder is known to be the one asked for."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncpipe.config.specs import Compute, Experiment, Run, recorded
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.code_digests import files_digest, forget, training_digests
from ncpipe.system.artifacts import PREPARED, check_seal, digest_of, read_json
from ncpipe.system.errors import InputError

RUN_RECORD = "run.json"


@dataclass(frozen=True)
class Stamp:
    """A run, the checksum of its prepared data, and how it is computed."""

    run: Run
    data: str
    compute: Compute

    def inputs(self) -> dict[str, Any]:
        """The part that has to agree for a folder to be the result of this run, as JSON values."""
        return inputs_of(self.run, self.data, self.compute)

    def key(self) -> str:
        """The run's fingerprint: what its folder is sealed with (`seal_key`), and named in the store.

        On which device it is asked for is no part of it, nor is the version of PyTorch: a finished run is the
        result, whoever trained it.
        """
        return digest_of([self.inputs(), code_digest(self.run.spec)])

    def batch_key(self) -> str:
        """Equal for runs that can train side by side: same data, shapes and steps."""
        spec = recorded(self.run.spec)
        data = spec.pop("data")
        del spec["penalty"]
        if self.run.spec.penalises_features:  # a term of the loss that others do not have
            spec["penalised_features"] = True
        if data.get("reduced"):  # of whatever size, such data have the same checksum
            spec["copies"] = data["per_class"]
        spec["optimizer"] = spec["optimizer"]["name"]
        return digest_of([spec, self.run.depth, self.data, dataclasses.asdict(self.compute)])


def stamps_of(runs: Sequence[Run], compute: Compute) -> list[Stamp]:
    """Their stamps with the data as they are prepared; InputError if one's are not."""
    checksums = {data: data_checksum(PREPARED / data) for data in {run.data for run in runs}}
    return [Stamp(run, checksums[run.data], compute) for run in runs]


def inputs_of(run: Run, data: str, compute: Compute) -> dict[str, Any]:
    """Return `Stamp.inputs`, which is part of the digest of the code that trains."""
    return {
        "experiment": run.experiment,
        "depth": run.depth,
        "seed": run.seed,
        "spec": recorded(run.spec),
        "data_checksum": data,
        "threads": compute.threads,
        "precision": compute.precision,
    }


def shared_inputs(experiment: str, spec: Experiment, axis: str | None, compute: Compute) -> dict[str, Any]:
    """What `inputs_of` has of all runs of an experiment in common before its data are prepared; and the axis
    of the study, if it has one, whose value is each run's own."""
    inputs = inputs_of(Run(experiment, 0, 0, spec), "", compute)
    del inputs["depth"], inputs["seed"], inputs["data_checksum"]
    return inputs if axis is None else inputs | {"axis": axis}


def check_run(folder: Path, stamp: Stamp) -> dict[str, Any]:
    """The record of a folder, if it is the result of this very run; else InputError names what differs."""
    record = read_json(folder / RUN_RECORD)
    inputs = record.get("inputs") if isinstance(record, dict) else None
    for key, value in stamp.inputs().items():
        if not isinstance(inputs, dict) or inputs.get(key) != value:
            raise InputError(f"{folder}: trained with another {key}; run dvc repro to train it anew")
    return record


def seal_key(record: dict[str, Any]) -> str:
    """What a run's folder is sealed with: digest of the inputs and the code that its record names."""
    return digest_of([record["inputs"], record["computed_with"]["code"]])


def check_whole(folder: Path) -> None:
    """InputError, naming the file, unless a folder is to the bit what some run was written as."""
    record = read_json(folder / RUN_RECORD)
    try:
        key = seal_key(record)
    except (KeyError, TypeError):
        raise InputError(f"{folder / RUN_RECORD}: damaged, or of another version") from None
    check_seal(folder, key)


def is_current(folder: Path, stamp: Stamp) -> bool:
    """Whether a folder holds the result of this run by the present code."""
    if not (folder / RUN_RECORD).is_file():
        return False
    try:
        return check_run(folder, stamp)["computed_with"]["code"] == code_digest(stamp.run.spec)
    except (InputError, KeyError, TypeError):  # damaged, another run's, or written by another version
        return False


def choices_of(spec: Experiment) -> dict[str, str]:
    """What of an experiment decides which code it runs: see `ncpipe.runs.code_digests`."""
    transfer = spec.data.transfer
    return {
        "architecture": spec.model.architecture,
        "source": spec.data.source,
        "loss": spec.loss_name,
        "optimizer": spec.optimizer.name,
        "target": "none" if transfer is None or transfer.data is None else transfer.data.source,
    }


def code_digest(spec: Experiment) -> str:
    """Digest of the code that decides the numbers of an experiment's runs."""
    return _code_digest(tuple(choices_of(spec).items()))


def forget_code() -> None:
    """Let code be read anew: it may have changed since."""
    forget()
    _taken.clear()
    _read.clear()


def check_code(spec: Experiment) -> None:
    """InputError if the code that trains an experiment's runs is not what this process has begun with."""
    before = code_digest(spec)
    if files_digest() != _read[0]:
        forget_code()
        if code_digest(spec) != before:
            raise InputError("the code was edited while it trained, so nothing of it is kept; start it again")


Key = tuple[tuple[str, str], ...]  # choices, as `ncpipe.runs.code_digests` has them
_taken: dict[Key, str] = {}
_read: list[str] = []  # digest of all bytes of code, before the first of it was looked at


def _code_digest(choices: Key) -> str:
    if not _read:
        _read.append(files_digest())
    if choices not in _taken:
        _taken[choices] = digest_of(training_digests(dict(choices)))
    return _taken[choices]
