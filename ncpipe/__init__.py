"""ncpipe: neural collapse against depth, as a cached and reproducible pipeline."""

__version__ = "0.2.0"
