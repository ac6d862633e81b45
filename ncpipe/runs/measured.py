"""Keep what a stage found of a run beside the run in the store, and take it from there.

A file `KEY.STAGE` for each run and stage, KEY being the run's fingerprint: of `extract` it says where DVC's
cache has the run's features, of `measure` it has the rows of the run's tables. It is sealed with all that
they depend on: the stage's code, the files that dvc.yaml lists for it, and the run and its data to the bit.
So nothing else takes it, nor is it taken damaged. Deleting such files only costs time.
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ncpipe.config.experiment import Experiment
from ncpipe.config.reading import at_start
from ncpipe.config.study import Study
from ncpipe.config.study_files import FETCH, always_runs, listed_digests
from ncpipe.datasets.own_loaders import check_loaders
from ncpipe.datasets.stored import FACTS
from ncpipe.runs.code_digests import experiment_digests
from ncpipe.runs.fingerprint import RunFingerprint, verify_run
from ncpipe.runs.store import manifest_key
from ncpipe.runs.store_layout import begin_store, beside, store_folder
from ncpipe.system.artifacts import MANIFEST, PREPARED, RUNS, digest_of, sha256_of
from ncpipe.system.console import plural
from ncpipe.system.errors import InputError


class Subject(NamedTuple):
    """Names a run that a stage measures: its folder and key, and the digest of all that the stage reads."""

    folder: Path
    key: str
    digest: str


class Kept:
    """Has what a stage found of the runs of one experiment, as values of JSON."""

    def __init__(self, stage: str, spec: Experiment, study: Study) -> None:
        self.stage = stage
        # What a loop of study.py is measured on comes from loaders, which read what is listed for `fetch`.
        listing = [stage, FETCH] if spec.training else [stage]
        self._always = always_runs(stage)
        self._code = digest_of(experiment_digests(spec, study)[stage])
        self._files = listed_digests(at_start(), *listing)

    def subject(self, fingerprint: RunFingerprint, further: object) -> Subject | None:
        """Return the subject of a run in data/runs.

        further: what the stage reads besides the run and its data. None where nothing can be kept: the run is
        not there, or dvc.yaml lets the stage always run. Raises InputError if loaders of study.py read other
        files than when the data were fetched.
        """
        run = fingerprint.run
        if run.spec.training:
            check_loaders(PREPARED / run.data, fingerprint.data, at_start())
        folder, facts = RUNS / run.path, PREPARED / run.data / FACTS
        if self._always:
            return None
        try:
            key = manifest_key(folder)
            of_run = [run.columns, fingerprint.inputs(), sha256_of(folder / MANIFEST), sha256_of(facts)]
        except (InputError, OSError):
            return None
        return Subject(folder, key, digest_of([self._code, self._files, of_run, further]))

    def take(self, subject: Subject | None) -> Any:
        """Return what was kept of a subject; None if there is nothing, or if that or the run is damaged."""
        if subject is None:
            return None
        try:
            sealed = self._path(subject).read_bytes()
            content = sealed.partition(b"\n")[2]
            if sealed != _sealed(subject, content):
                return None
            verify_run(subject.folder)
        except (InputError, OSError):
            return None
        return json.loads(zlib.decompress(content))

    def keep(self, values: Iterable[tuple[Subject | None, Any]]) -> None:
        """Keep what was found of subjects, unless the store cannot be used.

        Raises InputError if a file that the study's code may read has changed meanwhile.
        """
        at_start().check()
        with contextlib.suppress(InputError, OSError):  # a store of another version; a full or read-only disk
            begin_store()
            for subject, value in values:
                if subject is not None:
                    path = self._path(subject)
                    partial = beside(path)
                    partial.write_bytes(_sealed(subject, zlib.compress(json.dumps(value).encode())))
                    os.replace(partial, path)  # not flushed: the seal of what a power loss cuts is broken

    def _path(self, subject: Subject) -> Path:
        return store_folder() / f"{subject.key}.{self.stage}"


def _sealed(subject: Subject, content: bytes) -> bytes:
    return hashlib.sha256(subject.digest.encode() + content).hexdigest().encode() + b"\n" + content


def taken_too(count: int) -> str:
    """Return how a message ends that so many other runs need not be computed; empty if none."""
    return f"; {plural(count, 'run')} taken" if count else ""
