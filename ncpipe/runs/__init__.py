"""Runs: named, trained, stored and taken. Whatever of the package is imported after this runs as read."""

from ncpipe.config.study_reads import import_as_read

import_as_read()
