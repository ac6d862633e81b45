"""Hold the values that were measured: records to iterate over, a mapping by name, a table to look at."""

import difflib
import html
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncpipe.metrics.catalogue import CATALOGUE, UNKNOWN, entry_of_package, one_of_a_spectrum
from ncpipe.system.errors import InputError, cut
from ncpipe.system.text_table import aligned

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

FIELDS = ("layer", "split", "metric", "value")
Key = str | tuple[str, str, str]
Arrays = dict[str, "np.ndarray"]
Parts = Mapping[tuple[str, str], tuple[Arrays, Arrays]]  # of classes and of samples, by layer and split
SPECTRA = "Singular values are in to_pandas() and to_dict(), and in --json and --csv."


@dataclass(frozen=True)
class Measurement:
    """One value of one metric: a row of the long table, less the run's own columns."""

    layer: str
    split: str
    metric: str
    value: float


def rows_of(layer: str, split: str, values: Iterable[tuple[str, float]]) -> Iterator[Measurement]:
    """Yield (metric, value) of one layer and split as rows."""
    return (Measurement(layer, split, metric, value) for metric, value in values)


class Measurements:
    """What was measured, in the order in which it was: iterating gives records (layer, split, metric, value).

    `values["nc1_trace_ratio"]` is a value where only one layer and split has that metric, and
    `values["last", "test", "nc1_trace_ratio"]` is one in any case. Printed, it is a table for each layer;
    notebooks show it with each metric's meaning. `warnings` are of arrays of which some metrics say little.
    """

    def __init__(
        self, records: Iterable[Measurement], parts: Parts | None = None, warnings: Iterable[str] = ()
    ) -> None:
        self.records = tuple(records)
        self._parts = dict(parts or {})
        self.warnings = tuple(dict.fromkeys(warnings))

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Measurements) and self._comparable_records() == other._comparable_records()

    def _comparable_records(self) -> tuple[tuple[object, ...], ...]:
        """Return the records with None for NaN, which equals nothing."""
        rows = ((row.layer, row.split, row.metric, row.value) for row in self.records)
        return tuple((*key, None if math.isnan(value) else value) for *key, value in rows)

    def __contains__(self, key: object) -> bool:
        return any(True for _ in self._rows(key))

    def __getitem__(self, key: Key) -> float:
        """Return a value by metric, or by (layer, split, metric).

        Raises KeyError, in one line, if nothing or more than one value is of that name.
        """
        rows = list(self._rows(key))
        if len(rows) == 1:
            return rows[0].value
        if rows:
            keys = " or ".join(f"[{row.layer!r}, {row.split!r}, {key!r}]" for row in rows)
            raise KeyError(f"{key!r} has {len(rows)} values; write {keys}, or select a split or a layer")
        raise KeyError(f"{key!r} was not measured; {self._suggestion(key)}")

    def select(self, *, layer: str | None = None, split: str | None = None) -> "Measurements":
        """Return the values of one layer, of one split, or of both; raise InputError if there are none."""
        for name, wanted in (("layer", layer), ("split", split)):
            known = dict.fromkeys(getattr(row, name) for row in self.records)
            if wanted is not None and wanted not in known:
                raise InputError(f"{name} {wanted!r} was not measured; there is {', '.join(known) or 'none'}")
        return Measurements(
            (row for row in self.records if layer in (None, row.layer) and split in (None, row.split)),
            {
                key: arrays
                for key, arrays in self._parts.items()
                if layer in (None, key[0]) and split in (None, key[1])
            },
        )

    def with_records(self, records: Iterable[Measurement], warnings: Iterable[str] = ()) -> "Measurements":
        """Return these records and warnings with the classes' and samples' parts that are here."""
        return Measurements(records, self._parts, warnings)

    def by_class(self, layer: str = "last", split: str = "train") -> Arrays:
        """Return arrays (K,) by name, of one value a class: class, samples, nc1_trace_ratio, mean_length.

        nc1_trace_ratio is a class's mean squared distance to its mean over tr(Sigma_B), mean_length
        |mu_k - mu_G|. With a classifier there is unc3_cosine, cos(w_k, mu_k - mu_G), and after
        `by_sample=True` nc3_cosine, a class's mean of 1 - cos(h, w_k). So
        `classes["unc3_cosine"][classes["samples"] < 20].mean()` is the alignment of rare classes.
        Raises InputError for a layer or split that was not measured by classes.
        """
        return self._parts_of("by_class", layer, split)[0]

    def by_sample(self, layer: str = "last", split: str = "train") -> Arrays:
        """Return arrays (N,) by name, of one value a sample: label, nc1_trace_ratio, nc3_cosine, margin.

        Samples are in the order in which the loader or array gave them; the mean of each array is the metric
        of its name, of the margin `margin_mean`. Raises InputError if the measurement was not told
        `by_sample=True`.
        """
        samples = self._parts_of("by_sample", layer, split)[1]
        if not samples:
            raise InputError("by_sample: single samples were not kept; measure with by_sample=True")
        return samples

    def _parts_of(self, method: str, layer: str, split: str) -> tuple[Arrays, Arrays]:
        if (layer, split) not in self._parts:
            known = ", ".join(f"{layer!r}, {split!r}" for layer, split in self._parts)
            there = f"there is {known}" if known else "these values are not of classes"
            raise InputError(f"{method}: layer {layer!r}, split {split!r} has no parts; {there}")
        classes, samples = (
            {name: array.copy() for name, array in arrays.items()} for arrays in self._parts[layer, split]
        )
        return classes, samples

    def to_dict(self) -> dict[str, float]:
        """Return the values by `LAYER/SPLIT/METRIC`, as loggers take them."""
        return {f"{row.layer}/{row.split}/{row.metric}": row.value for row in self.records}

    def to_pandas(self, *, wide: bool = False) -> "pd.DataFrame":
        """Return a frame with the columns layer, split, metric and value.

        wide: a row for each layer and split, which are its index, and a column for each metric instead; NaN
        where a metric was not measured. Raises InputError where pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise InputError("to_pandas() needs pandas: pip install pandas, or use to_dict()") from None
        if wide:
            rows: dict[tuple[str, str], dict[str, float]] = {}
            for row in self.records:
                rows.setdefault((row.layer, row.split), {})[row.metric] = row.value
            index = pd.MultiIndex.from_tuples(list(rows), names=FIELDS[:2])
            return pd.DataFrame(list(rows.values()), index=index)
        return pd.DataFrame([vars(row) for row in self.records], columns=FIELDS)

    def plot(self, metrics: Sequence[str] | None = None) -> "Figure":
        """Return a matplotlib figure of metrics against layers, a line for each split.

        metrics: their names; by default of NC1 to NC4 what most layers have. Save it with
        `.savefig("layers.png")`; notebooks show it.
        """
        from ncpipe.metrics.plots import plot_layers

        rows = [(row.layer, row.split, row.metric, row.value) for row in self.records]
        return plot_layers(rows, metrics)

    def __repr__(self) -> str:
        shown = [row for row in self.records if not one_of_a_spectrum(row.metric)]
        lines = [f"{len(self.records)} measurements"] if not shown else []
        for layer in dict.fromkeys(row.layer for row in shown):
            head, *rows = _cells([row for row in shown if row.layer == layer])
            lines += [f"layer {layer}", *aligned([head, *rows], right=range(2, len(head) - 1))]
        if len(shown) < len(self.records):
            lines.append(f"collapse: the value at collapse. {SPECTRA}")
        if sys.stdout.isatty():  # a longer line would wrap, and no column would stand below its head
            width = shutil.get_terminal_size().columns
            lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        shown = [row for row in self.records if not one_of_a_spectrum(row.metric)]
        parts = []
        for layer in dict.fromkeys(row.layer for row in shown):
            head, *rows = _cells([row for row in shown if row.layer == layer], with_direction=True)
            lines = [_html_row("th", head), *(_html_row("td", row) for row in rows)]
            parts.append(f"<table><caption>layer {html.escape(layer)}</caption>{''.join(lines)}</table>")
        return "".join(parts)

    def _suggestion(self, key: object) -> str:
        """Return what to write in place of a key that nothing is of."""
        wanted = str(key[-1] if isinstance(key, tuple) and key else key)
        if same := [row for row in self.records if row.metric == wanted]:
            return cut(f"there is {', '.join(f'[{row.layer!r}, {row.split!r}, {wanted!r}]' for row in same)}")
        names = list(dict.fromkeys(row.metric for row in self.records if not one_of_a_spectrum(row.metric)))
        near = difflib.get_close_matches(wanted, names) or [name for name in names if name.startswith(wanted)]
        if near:
            return f"is it {' or '.join(near[:3])}?"
        return cut(f"there is {', '.join(names) or 'nothing'}")

    def _rows(self, key: object) -> Iterator[Measurement]:
        return (row for row in self.records if key in (row.metric, (row.layer, row.split, row.metric)))


def number(value: float) -> str:
    """Return a value with four significant digits: 0.0123, 1.5e-07, inf, nan."""
    return f"{value:.4g}"


def _cells(rows: Sequence[Measurement], with_direction: bool = False) -> list[list[str]]:
    """Return the head and the rows of a layer's table, in the order of the catalogue."""
    splits = sorted(dict.fromkeys(row.split for row in rows), key=lambda split: split == "weights")
    values = {(row.metric, row.split): number(row.value) for row in rows}
    extra = ["closer to collapse"] if with_direction else []
    table = [["", "metric", *splits, "collapse", *extra, "meaning"]]
    for group, members in _groups({row.metric for row in rows}):
        for name in members:
            head, known = group if name == members[0] else "", entry_of_package(name)
            cells = [values.get((name, split), "") for split in splits]
            direction = [known.direction] if with_direction else []
            table.append([head, name, *cells, known.collapse, *direction, known.meaning])
    return table


def _groups(names: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each group with its metrics, in the order of the catalogue."""
    for group in dict.fromkeys(metric.group for metric in CATALOGUE.values()):
        if members := [name for name, m in CATALOGUE.items() if m.group == group and name in names]:
            yield group, members
    if unknown := sorted(names - set(CATALOGUE)):
        yield UNKNOWN.group, unknown


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
