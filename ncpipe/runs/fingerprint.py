"""Compute fingerprints of runs: digests of everything that a run's result depends on.

`ncpipe.runs.code_digests` digests the code; `ncpipe.runs.store` names stored runs by their fingerprints.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncpipe.config.experiment import Experiment
from ncpipe.config.optimizer_specs import OneAtATime
from ncpipe.config.reading import Reading, at_start
from ncpipe.config.run import Compute, Run, as_json
from ncpipe.config.study import Study
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.code_digests import picked_entries, training_digests
from ncpipe.system.artifacts import PREPARED, check_manifest, digest_of, read_json
from ncpipe.system.errors import InputError

RUN_RECORD = "run.json"


@dataclass(frozen=True)
class RunFingerprint:
    """Holds a run, the checksum of its prepared data, how it is computed, and the digest of its code.

    code: empty where only the inputs count, as in what reads finished runs; such a fingerprint has no key.
    """

    run: Run
    data: str
    compute: Compute
    code: str = ""

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the run as JSON values, as its run.json records them."""
        return inputs_of(self.run, self.data, self.compute)

    def key(self) -> str:
        """Return the digest that names the run in the store and in its folder's manifest.

        It does not depend on the device and the version of PyTorch, so a finished run counts on any machine.
        """
        return self._key

    @functools.cached_property
    def _key(self) -> str:
        # Once: a fill asks for the key of every run a dozen times.
        assert self.code
        return digest_of([self.inputs(), self.code])

    def batch_key(self) -> str:
        """Return a digest that is equal for runs that can train in one batch: same data, shapes and steps.

        Own loops and some optimizers train one run at a time.
        """
        if self.run.spec.training or isinstance(self.run.spec.optimizer, OneAtATime):
            return digest_of(self.inputs())
        spec = as_json(self.run.spec)
        data = spec.pop("data")
        del spec["penalty"]
        if self.run.spec.penalises_features:  # the loss has another term
            spec["penalised_features"] = True
        if data.get("reduced"):  # these data have the same checksum for all sizes
            spec["copies"] = data["per_class"]
        spec["optimizer"] = spec["optimizer"]["name"]
        return digest_of([spec, self.run.depth, self.data, dataclasses.asdict(self.compute)])


def fingerprint_of(run: Run, data: str, compute: Compute) -> RunFingerprint:
    """Return the fingerprint of a run with the code that this process runs. data: their checksum."""
    return RunFingerprint(run, data, compute, code_digest(run.spec, run.study))


def fingerprints_of(runs: Sequence[Run], compute: Compute) -> list[RunFingerprint]:
    """Return the fingerprints of runs with their prepared data, for reading finished runs: without code.

    Raises InputError if data are not prepared.
    """
    checksums = {data: data_checksum(PREPARED / data) for data in {run.data for run in runs}}
    return [RunFingerprint(run, checksums[run.data], compute) for run in runs]


def inputs_of(run: Run, data: str, compute: Compute) -> dict[str, Any]:
    """Return `RunFingerprint.inputs`."""
    return {
        "experiment": run.experiment,
        "depth": run.depth,
        "seed": run.seed,
        "spec": as_json(run.spec),
        "data_checksum": data,
        "threads": compute.threads,
        "precision": compute.precision,
    }


def shared_inputs(experiment: str, spec: Experiment, axis: str | None, compute: Compute) -> dict[str, Any]:
    """Return the part of `inputs_of` that an experiment's runs share and that does not need prepared data.

    It also has the study's axis, if there is one.
    """
    inputs = inputs_of(Run(experiment, 0, 0, spec), "", compute)
    del inputs["depth"], inputs["seed"], inputs["data_checksum"]
    return inputs if axis is None else inputs | {"axis": axis}


def check_run(folder: Path, fingerprint: RunFingerprint) -> dict[str, Any]:
    """Return run.json of a folder; raise InputError if it is not the result of this run."""
    record = read_json(folder / RUN_RECORD)
    inputs = record.get("inputs") if isinstance(record, dict) else None
    for key, value in fingerprint.inputs().items():
        if not isinstance(inputs, dict) or inputs.get(key) != value:
            raise InputError(f"{folder}: trained with another {key}; run dvc repro to train it again")
    return record


def key_of_record(record: dict[str, Any]) -> str:
    """Return a run's fingerprint from its run.json."""
    return digest_of([record["inputs"], record["computed_with"]["code"]])


def verify_run(folder: Path) -> None:
    """Raise InputError, with the file's name, if any bit of a run's folder differs from what was written."""
    record = read_json(folder / RUN_RECORD)
    try:
        key = key_of_record(record)
    except (KeyError, TypeError):
        raise InputError(f"{folder / RUN_RECORD}: damaged, or written by another version") from None
    check_manifest(folder, key)


def is_current(folder: Path, fingerprint: RunFingerprint) -> bool:
    """Return whether a folder has the result of this run with its code; does not look for damage."""
    if not (folder / RUN_RECORD).is_file():
        return False
    try:
        return check_run(folder, fingerprint)["computed_with"]["code"] == fingerprint.code
    except (InputError, KeyError, TypeError):  # damaged, another run, or written by another version
        return False


def code_digest(spec: Experiment, study: Study) -> str:
    """Return the digest of the code that affects the numbers of an experiment's runs."""
    records = (record for record, _ in picked_entries(spec).values())
    key = Path.cwd(), *records, getattr(spec, "start", None)
    digests = at_start().digests
    if key not in digests:
        digests[key] = digest_of(training_digests(spec, study, at_start()))
    return digests[key]


def check_code(fingerprint: RunFingerprint, reading: Reading) -> None:
    """Raise InputError unless the code in a reading has the digest of a run's fingerprint."""
    try:
        code = digest_of(training_digests(fingerprint.run.spec, fingerprint.run.study, reading))
    except (OSError, SyntaxError, ValueError):  # a file that is being written, or is half edited
        code = ""
    if code != fingerprint.code:
        raise InputError(
            "the code was edited since the command began, so no further run begins; start it again"
        )
