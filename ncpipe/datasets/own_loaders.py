"""Take the samples that a loop of study.py is measured on from its loaders, and record what they give.

A study's `loaders(spec, seed)` returns (train, measured), and after these test, ood and target where there
are such, None in the place of one that is missing. `train` has batches to train on, which only the loop
itself reads; `measured` has the training samples without augmentation, in one order; `test` has held-out
ones; `ood` has other data, whose labels mean nothing; `target` has classes that the network is not trained
on, for `measure.transfer`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.reading import Reading
from ncpipe.config.run import Run
from ncpipe.config.study import call, mistake_of, study_errors
from ncpipe.config.study_files import FETCH, LOOP, PIPELINE, listed_digests
from ncpipe.config.study_reads import called_by
from ncpipe.datasets.stored import read_facts, store
from ncpipe.system.artifacts import digest_of, json_text
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators
from ncpipe.system.tensor_files import save_tensors

FILES = "files"  # in the facts, and beside the labels
KIND = "loaders"  # of prepared data that only their loaders hold
REPEAT = "use the same samples in the same order, without augmentation or shuffling"
Loader = Iterable[Any]


class _Watched:
    """A loader whose errors name the line of study.py, and which may read what the stage fetch lists."""

    def __init__(self, loader: Loader, most: int | None) -> None:
        self.loader, self.most = loader, most

    def __iter__(self) -> Iterator[Any]:
        with called_by(LOOP), study_errors():
            yield from islice(self.loader, self.most)


def measured_loaders(run: Run, most: int | None = None) -> dict[str, Loader]:
    """Return the loaders that a run is measured on: `train`, and `test`, `ood` and `target` if there are.

    most: batches of each; None for all. Raises InputError for what `loaders` may not return.
    """
    keys = run.spec.training
    with global_generators(run.seed, "loaders"):
        values = call(keys.study_entry.loaders, keys, run.seed, stage=LOOP)
    if not isinstance(values, tuple | list) or len(values) not in (2, 3, 4, 5):
        count = f"{len(values)} values" if isinstance(values, tuple | list) else type(values).__name__
        raise _mistake(run, f"gives {count}; return (train, measured), then test, ood and target")
    loaders = {
        name: loader
        for name, loader in zip(("train", "test", "ood", "target"), values[1:], strict=False)
        if loader is not None
    }
    if "ood" in loaders and "test" not in loaders:
        raise _mistake(run, "gives ood and no test, with whose samples its scores are compared; give both")
    if ("target" in loaders) != (run.spec.transfer is not None):
        target = "target" if "target" in loaders else "no target"
        raise _mistake(run, f"gives {target}; few-shot errors need target and measure.transfer both")
    for name, loader in loaders.items():
        if hasattr(loader, "__next__") or not hasattr(loader, "__iter__"):
            kind = type(loader).__name__
            raise _mistake(
                run, f"gives a {kind} to measure on ({name}); give a DataLoader or a list of batches"
            )
    return {name: _Watched(loader, most) for name, loader in loaders.items()}


def loader_digests(run: Run, most: int | None = None) -> dict[str, tuple[str, Tensor]]:
    """Return by split the SHA-256 of its batches and its labels (N,), after two passes that have to be equal.

    most: batches of each split; None for all. Raises InputError if a second pass gives other samples.
    """
    digests: dict[str, tuple[str, Tensor]] = {}
    for name, loader in measured_loaders(run, most).items():
        with global_generators(run.seed, "loaders"):
            digest, labels = _digest(run, name, loader)
            if _digest(run, name, loader)[0] != digest:
                raise _mistake(run, f"gives other samples to measure on ({name}) in a second pass; {REPEAT}")
        if name == "ood" and digest in [of_split for of_split, _ in digests.values()]:
            raise _mistake(run, "gives the same samples as ood too; give those of other data")
        digests[name] = digest, labels
    return digests


def store_loaders(folder: Path, run: Run) -> dict[str, int]:
    """Write what a run's loaders give to measure on as `folder`: labels, and digests; return the sizes.

    A digest is of each split's batches, and of the files that loaders and loop may read besides.
    """
    digests = loader_digests(run)
    tensors = {f"{name}.labels": labels for name, (_, labels) in digests.items()}
    facts = {
        "batches": {name: digest for name, (digest, _) in digests.items()},
        FILES: _files_digest(Reading()),
    }
    note = {"facts": json_text(facts)}  # one text: safetensors writes several in any order
    classes = int(digests["train"][1].max()) + 1
    store(folder, lambda path: save_tensors(tensors, path, note), KIND, classes, None, facts)
    return {name: len(labels) for name, (_, labels) in digests.items()}


def check_loaders(folder: Path, checksum: str, reading: Reading) -> None:
    """Raise InputError unless the files that loaders and loop may read are those of the prepared data."""
    facts = read_facts(folder)
    if facts["checksum"] != checksum or facts["facts"].get(FILES) != _files_digest(reading):
        raise InputError(
            f"{folder}: files that {PIPELINE} lists for the stage {FETCH} have changed since it ran; run dvc "
            "repro, which fetches again"
        )


def _files_digest(reading: Reading) -> str:
    return digest_of(listed_digests(reading, FETCH))


def _digest(run: Run, name: str, loader: Loader) -> tuple[str, Tensor]:
    digest, labels = hashlib.sha256(), []
    for batch in loader:
        _add(digest, batch)
        if isinstance(batch, Mapping) and "labels" not in batch:
            keys = ", ".join(map(str, batch))
            raise _mistake(run, f"gives a batch without labels to measure on ({name}); its keys are {keys}")
        of_batch = batch["labels"] if isinstance(batch, Mapping) else batch[-1]
        labels.append(torch.as_tensor(of_batch).flatten())
    if not labels:
        raise _mistake(run, f"gives no batches to measure on ({name})")
    if torch.cat(labels).is_floating_point():
        raise _mistake(
            run, f"gives labels that are no whole numbers ({name}); number the classes 0, 1, 2, ..."
        )
    return digest.hexdigest(), torch.cat(labels)


def _add(digest: Any, value: Any) -> None:
    """Add a batch, or a part of one, to a digest."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(
            value.view(torch.uint8).numpy().tobytes() if value.dim() else repr(value.item()).encode()
        )
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:  # whose repr leaves most values out
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            digest.update(str(key).encode())
            _add(digest, part)
    elif isinstance(value, tuple | list):
        for part in value:
            _add(digest, part)
    else:
        digest.update(repr(value).encode())


def _mistake(run: Run, problem: str) -> InputError:
    return mistake_of(run.spec.training.study_entry.loaders, problem)
