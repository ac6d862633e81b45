"""What cannot be measured, of arrays, files, models and tokens: one line that says why."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused_by
from torch import Tensor, nn

import ncpipe as nc
from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.checks import check_arrays, check_shots
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.sample_statistics import SampleAccumulator, check_classifier
from ncpipe.metrics.statistics import StatisticsAccumulator, class_statistics
from ncpipe.metrics.table import measure, measure_batches
from ncpipe.metrics.vocabulary import TokenPass, measure_token_arrays
from ncpipe.models.hook_points import hook_points

pytestmark = pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
DRAW = np.random.default_rng(0)
H, TEST, OTHER = (DRAW.standard_normal((count, 5)) for count in (30, 30, 8))
Y, W, B = np.arange(30) % 3, DRAW.standard_normal((3, 5)), DRAW.standard_normal(3)
ALL = (H, Y, W, B, TEST, Y)
F = nc.functional
NAN = np.where(np.arange(150).reshape(30, 5) == 37, np.nan, H)
INF = np.full((3, 5), np.inf)
HOT = np.eye(3, dtype=int)[Y]
TARGETS = DRAW.standard_normal((30, 3))
STORED = {"features": H, "labels": Y, "weight": W, "bias": B, "test_features": TEST, "test_labels": Y}
VECTORS = {"features": H, "targets": TARGETS, "weight": W, "bias": B}


def file(stored: dict[str, Any], changes: dict[str, Any], **options: Any) -> Callable[[], object]:
    """Measure a file of these arrays, of which some are replaced, or left out where None."""

    def measured() -> object:
        given = {name: array for name, array in (stored | changes).items() if array is not None}
        np.savez("f.npz", **given)
        return nc.measure_file("f.npz", **options)

    return measured


def arrays(*given: Any, **more: Any) -> Callable[[], object]:
    return lambda: measure(*given, **more)


def tokens(**changes: Any) -> Callable[[], object]:
    return lambda: measure_token_arrays(**({"features": H, "labels": Y, "weight": W} | changes))


def statistics(features: Tensor, labels: Tensor) -> Callable[[], object]:
    def updated() -> object:
        held = StatisticsAccumulator(3, 5)
        held.update(features, labels)
        return held.result()

    return updated


def batches(
    *first: tuple[Tensor, Tensor],
    again: tuple[Tensor, Tensor] | None = None,
    test: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Callable[[], object]:
    """Measure batches of which a second pass gives others, `again`."""
    passes = iter([list(first), [again]])
    return lambda: measure_batches(lambda: next(passes), 3, (lambda: [test]) if test else None, **options)


h, y, t = torch.from_numpy(H), torch.from_numpy(Y), torch.from_numpy(HOT)
LOADER = [(h, y)]
Vector = nn.Sequential(nn.Linear(5, 3)).double()
Wide = nn.Sequential(nn.Linear(5, 1)).double()


class Calls(nn.Module):
    """A classifier that is called some times."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(5, 3).double(), calls

    def forward(self, rows: Tensor) -> list[Tensor]:
        return [self.fc(rows) for _ in range(self.calls)]


class Turned(nn.Module):
    """Classifies positions; its body gives (n, d, T) or (T, n, d) of inputs (n, T, d)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        turned = (1, 2) if isinstance(self.body, nn.Conv1d) else (0, 1)
        values = self.body(rows.transpose(*turned))
        values = values[0] if isinstance(values, tuple) else values  # of an LSTM
        logits: Tensor = self.fc(values.transpose(*turned))
        return logits


PLACES = torch.randn(6, 6, 6, generator=torch.Generator().manual_seed(0))


def infinite() -> nn.Module:
    layer = nn.Linear(5, 3, bias=False)
    layer.weight.data = torch.from_numpy(INF)
    return nn.Sequential(layer)


def model(
    *loaders: Any, network: nn.Module = Vector, head: Any = "0", **options: Any
) -> Callable[[], object]:
    return lambda: measure_model(network, head, *loaders, **options)


def rows(measured: Any, labels: Tensor, **options: Any) -> Callable[[], object]:
    return lambda: measured(Vector, "0", [(h, labels)], **options)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens))


def diverged() -> Decoder:
    network = Decoder()
    network.embed.weight.data.fill_(float("nan"))
    return network


IDS = torch.randint(9, (8, 12), generator=torch.Generator().manual_seed(0))


def causal(
    *batches: Any, network: nn.Module | None = None, unembedding: Any = "out", **options: Any
) -> Callable[[], object]:
    decoder = network or Decoder()
    return lambda: measure_causal_lm(decoder, list(batches), unembedding=unembedding, **options)


def computed(classes: Any) -> Callable[[], object]:
    def values() -> object:
        from ncpipe.integrations.torchmetrics import ClassCollapse  # takes seconds to import

        metric = ClassCollapse(4, 5, classes)
        metric.update(h, y)
        return metric.compute()

    return values


NO_TEST = "ood: its scores are compared with those of test samples; give test features too"
THREE = "ood_loader: its scores tell other data from test samples; give test_loader too, each of its own"
RARE = (
    "classes that occur at least 10 times in the test split: 0 of the train split's 3 (the most frequent one "
    "9 times); collapse needs 2: "
)
NINE = np.repeat([0, 1, 2, 3], [9, 8, 9, 4])
MISTAKES: list[tuple[Callable[[], object], str]] = [
    # Arrays
    (arrays(NAN, Y), "train features hold NaN or inf, first in row 7 "),
    (arrays(H[0], Y), "train features must be (samples, width), neither of them 0, not (5,)"),
    (arrays(H, Y[1:]), "labels must be 30 integers"),
    (
        arrays(H, Y[:, None]),
        "train labels has shape (30, 1); expected (N, K) of 0 and 1, K > 1; labels, a number for each",
    ),
    (arrays(H[Y != 2], Y[Y != 2], W), "class 2 has no train samples; labels found: 0, 1; expected: 0 to 2"),
    (arrays(H, Y - 1), "label -1 of sample 0 is not in 0..1"),
    (arrays(H, Y, W[:2]), "label 2 of sample 2 is not in 0..1"),
    (
        arrays(H, Y, W[:, 1:]),
        "weight must have a row per output and a column per feature, (3, 5), not (3, 4)",
    ),
    (
        arrays(H, Y, W.T),
        "weight must have a row per output and a column per feature, (3, 5), not (5, 3); ",
    ),
    (arrays(H, Y, INF), "weight hold NaN or inf"),
    (arrays(H, Y, W, B[1:]), "bias must have an entry per output"),
    (arrays(H, Y, None, B), "a bias needs a weight"),
    (lambda: check_classifier(3, 5, None, torch.ones(3)), "a bias needs a weight; give both or neither"),
    (lambda: check_arrays(H, 0.5 * Y), "labels must be integers, one a sample, not torch.float64"),
    (arrays(H, 0 * Y), "train labels name 1 class; collapse needs at least 2"),
    (arrays(H[:2], [0, 2]), "labels go up to 2, but only 2 samples"),
    (arrays(H, Y, test_features=H), "test_features and test_labels come together"),
    (arrays(H, Y, None, None, H[Y > 0], Y[Y > 0]), "class 0 has no test samples"),
    (arrays(H, Y, None, None, H[:, 1:], Y), "train and test features differ in width: 5 and 4"),
    *(
        (arrays(H, Y, batch_size=size), "batch_size: a whole number of samples, 1 or more, not")
        for size in (2.5, True)
    ),
    (arrays(H, HOT, shots=[1]), "ood, shots and by_sample: need one class a sample"),
    (arrays(H, HOT, by_sample=True), "ood, shots and by_sample: need one class a sample"),
    (
        arrays(H, 0.5 * Y),
        "labels must be integers, one a sample, not torch.float64; numbers to be predicted take",
    ),
    (
        arrays(H, 0.5 * Y, W),
        "labels must be 30 integers, one a sample, not torch.float64 (30,); numbers to be",
    ),
    (
        arrays(H, 0.5 * HOT),
        "train labels are floats (30, 3); classes are integers, tags 0 or 1; numbers to be",
    ),
    (arrays(H, HOT[1:]), "30 train features and 29 labels; they belong together"),
    (arrays(H, 2 * HOT), "train labels has 2 in row 0 (from 0); tags are 0 or 1"),
    (arrays(H, Y, shots=[0]), "shots: whole numbers, 1 or more, not 0"),
    (arrays(H, Y, shots=5), "shots: a list of numbers, as (1, 5), not 5"),
    (arrays(H, Y, shots=None), "shots: a list of numbers, as (1, 5), not None"),
    (arrays(H, Y, shots=np.array([2, 2])), "shots: a number is listed twice; list each once"),
    (lambda: check_shots([10], 5, y), "shots: class 0 has 10 samples; 10 shots leave none to decide"),
    (arrays(H, Y, shots=[1], episodes=0), "episodes: a whole number, 1 or more, not 0"),
    (lambda: F.nc2_etf([1.0, 2.0]), "weight must be (classes, width)"),
    (lambda: F.nc2_etf(INF), "weight hold NaN or inf"),
    (lambda: F.ncc_error(H, Y, train=(H[:, 1:], Y)), "train and test features differ in width: 4 and 5"),
    # Parts and figures of what was measured
    (lambda: measure(*ALL).by_sample(), "by_sample: single samples were not kept; measure with by_sample"),
    (
        lambda: measure(*ALL).by_class("body"),
        "by_class: layer 'body', split 'train' has no parts; there is 'last', 'train', 'last', 'test'",
    ),
    (lambda: measure(*ALL).plot(["nc9"]), "plot: 'nc9' was not measured; "),
    (lambda: measure(*ALL).plot("cdnv"), "plot: a list of names: ['cdnv']"),
    (lambda: nc.Measurements([]).plot(), "plot: nothing was measured"),
    # Files
    (file(STORED, {"labels": None}), "f.npz: has no 'labels'; it has features, weight"),
    (file(STORED, {"features": None}), "f.npz: has no 'features'"),
    (file(STORED, {"labels": np.where(Y == 1, 2, Y)}), "f.npz: class 1 has no train samples; labels "),
    (file(STORED, {"features": np.full((30, 5), None)}), "f.npz: holds Python objects; save plain arrays"),
    (file(STORED, {"ood_features": OTHER}, classes="present"), "f.npz: has ood_features, whose scores need"),
    (file(VECTORS, {"ood_features": OTHER}), "f.npz: has ood_features, whose scores need"),
    (file(VECTORS, {"targets": TARGETS * np.nan}), "f.npz: train targets hold NaN or inf, first in row 0"),
    (file(VECTORS, {"targets": np.ones((30, 3))}), "f.npz: train targets are constant in column 0"),
    (file(VECTORS, {"targets": HOT}), "f.npz: train targets are of type torch.int64; expected floats"),
    (file(VECTORS, {"targets": TARGETS[:, 0]}), "f.npz: train targets are (30,); expected (N, t)"),
    (file(VECTORS, {"labels": Y}), "f.npz: has labels and targets; leave out one"),
    (file(VECTORS, {"weight": W[:2]}), "f.npz: weight must have a row per "),
    (file(VECTORS, {"test_features": TEST}), "f.npz: test_features and test_targets come together"),
    (file(VECTORS, {"features": H[:5]}), "f.npz: 5 train features and 30 targets"),
    # Statistics of batches
    (statistics(h[y != 1], y[y != 1]), "class 1 has no samples"),
    (
        statistics(h, torch.arange(30)),
        "label 3 of sample 3 is not in 0..2; labels found: 30 from 0 to 29;",
    ),
    (statistics(h[:, :3], y), "features must be floats of shape"),
    (statistics(h.long(), y), "features must be floats"),
    (lambda: StatisticsAccumulator(3, 5).merge(StatisticsAccumulator(3, 4)), "accumulators of different"),
    (batches(), "train(): it gave no samples; there is nothing to measure"),
    (batches((h[:, 0], y)), "features must be floats of shape (samples, 30), not torch.float64 (30,)"),
    (batches((h, y), test=(h[:, 1:], y)), "train and test features differ in width: 5 and 4"),
    (batches((h, y), test=(h[y > 0], y[y > 0])), "class 0 has no test samples; labels found: 1, 2;"),
    (batches((h, y), again=(h[y > 0], y[y > 0]), keep=0), "train(): its second pass gave other samples;"),
    (
        batches((h, y), again=(h + 9 * torch.from_numpy(W)[y], y), keep=0),
        "train(): its second pass gave other samples;",
    ),
    (
        batches((torch.from_numpy(W)[y], y), again=(torch.from_numpy(W)[y[1:]], y[1:]), keep=0),
        "train(): its second pass gave other samples;",  # of no spread: only their number tells
    ),
    # Other data
    (arrays(H, Y, ood=OTHER), NO_TEST),
    (arrays(*ALL, ood=OTHER[:, 1:]), "ood features are (8, 4); they must be (samples, 5)"),
    (arrays(*ALL, ood=OTHER[0]), "ood features are (5,); they must be (samples, 5)"),
    (arrays(*ALL, ood=H), "ood features are the train features; give those of"),
    (arrays(*ALL, ood=TEST), "ood features are the test features; give"),
    (arrays(*ALL, ood=NAN), "ood features hold NaN or inf, first in row 7"),
    (model(LOADER, None, [(h[:8], y[:8])]), THREE),
    (model(LOADER, [(h, y)], LOADER), THREE),
    # Tokens
    (tokens(min_per_class=0), "min_per_class: a whole number"),
    (tokens(min_per_class=10**6), "classes that occur at least 1000000 times in the train split: 0 (the"),
    (tokens(labels=np.full(30, 2)), "classes that occur at least 1 times in the train split: 1 (the most"),
    (tokens(test_features=TEST[:, 1:], test_labels=Y), "train and test features differ in width: 5 and 4"),
    (tokens(features=NAN), "the train features of layer last hold NaN or inf"),
    (tokens(weight=W[:, 1:]), "weight must have a row per output"),
    (tokens(weight=INF), "the unembedding's weight hold NaN or inf"),
    (tokens(labels=np.arange(30) % 4), "label 3 of sample 3 is not in 0..2"),
    (tokens(labels=Y[1:]), "train features and labels must be (N, d) and (N,)"),
    (tokens(weight=None, test_features=TEST, test_labels=NINE, min_per_class=10), RARE),
    (
        lambda: TokenPass(10**9, 10**5),
        "class statistics of 1000000000 tokens of width 100000 take up to 5.6",
    ),
    (lambda: TokenPass(9, 5, decisions=0), "decisions: a whole number, 1 or more, or None for all, not 0"),
    *(
        (
            lambda shape=shape: nc.measure_tokens(torch.zeros(shape), y),
            f"tokens are {shape}; they must be (samples, tokens, width), none of them 0: all tokens",
        )
        for shape in ((30, 5), (30, 0, 5), (0, 4, 5), ())
    ),
    *(
        (
            lambda lengths=lengths: nc.measure_tokens(h.unsqueeze(1), y, lengths),
            "lengths: a whole number from 1 to 1 for each sample",
        )
        for lengths in ([1] * 29 + [0], [1, 1], [1.5] * 30)
    ),
    (lambda: nc.measure_tokens(h.unsqueeze(1), 0 * y), "labels name 1 class; collapse needs at least 2"),
    (lambda: measure_batches(iter(LOADER), 3), "measure_batches: train and test are functions that start"),  # type: ignore[arg-type]
    *(
        (batches(batch), "measure_batches: give batches (features, labels) of (B, d) and (B,)")  # type: ignore[arg-type]
        for batch in ((h, y, y), (h, None), h)
    ),
    (
        tokens(weight=np.float64(1)),
        "weight must have a row per output and a column per feature, (3, 5), not ()",
    ),
    (lambda: nc.measure_tokens(NAN[:, None], y), "tokens hold NaN or inf, first in row 7"),
    (lambda: nc.measure_tokens(h.unsqueeze(1), y[1:]), "labels must be 30 integers"),
    (lambda: nc.measure_tokens(h.unsqueeze(1), 2 * y), "class 1 has no samples"),
    # Models
    (model(LOADER, head="head"), "classifier: the model has no layer 'head'; its Linear layers: 0"),
    (model(LOADER, network=nn.Sequential(Vector)), "classifier: 0 is a Sequential, not a Linear; its Linear"),
    (
        model(LOADER, network=nn.Sequential(nn.ReLU()), head="fc"),
        "classifier: the model has no layer 'fc'; ",
    ),
    (lambda: hook_points(Vector, "0"), "layers takes a list of names: ['0']"),
    (lambda: hook_points(Vector, [Vector]), "layers: a list of names, or a mapping of names to functions, n"),
    (lambda: hook_points(Vector, 3), "layers: a list of names, or a mapping of names to functions, not 3"),
    (lambda: hook_points(Vector, ["b*"]), "layers: no layer of the model matches 'b*'"),
    (
        model(LOADER, select=lambda values, inputs: None),
        "layer 'last': its function gives None, not a tensor",
    ),
    (
        model(LOADER, network=nn.Sequential(nn.LazyLinear(3))),
        "layer '0' has no parameters yet: LazyLinear makes",
    ),
    *(
        (
            model([(PLACES, PLACES[0].long())], network=Turned(body), head="fc", layers=["body"]),
            "layer 'body' gives (6, 6, 6), in which samples, positions and width cannot be told apart; name",
        )
        for body in (nn.Conv1d(6, 6, 1), nn.TransformerEncoderLayer(6, 2, dropout=0.0), nn.LSTM(6, 6))
    ),
    (model(LOADER, head=0), "classifier: a name or a module, not 0"),
    (model(LOADER, head=nn.Linear(2, 3)), "classifier: the given module is no part of the model"),
    (model(LOADER, network=Wide), "the classifier has one output"),
    (model(LOADER, network=Calls(0), head="fc"), "layer 'last' ran 0 times"),
    (model(LOADER, network=Calls(2), head="fc"), "layer 'last' ran 2 times"),
    (
        model(iter(LOADER), keep=0),
        "loader: its features take more than 0 of the free memory (`keep`), and it gives its batches once; ",
    ),
    (model(LOADER, keep=2), "keep: a share of the free memory, from 0 to 1, not 2"),
    (model(None), "loader: give a DataLoader or a list of batches, not None"),
    (model("train"), "loader: give a DataLoader or a list of batches, not 'train'"),
    (
        model(list(zip(h, y, strict=True))),
        "labels are torch.int64 (); they must be whole numbers (n,) or (n, T); b",
    ),
    (
        model([(h, t)]),
        "layer 'last': (30, 5) for labels of shape (30, 3); expected one row for each label; one class",
    ),
    (model(LOADER, network=nn.Sequential(nn.Linear(5, 3, device="meta"))), "the model is on the device meta"),
    (model([]), "loader: it gave no samples; there is nothing to measure"),
    (model([h]), "a batch has no labels; it must be (inputs, labels)"),
    (model([{"rows": h, "y": y}]), "a batch has no 'labels'; it has rows, y"),
    (model([(h, h)]), "labels are torch.float64 (30, 5); they must be whole numbers (n,) or (n, T); floats"),
    (model([(h, y[:1])]), "layer 'last': (30, 5) for 1 labels"),
    (model([(h[:2], torch.tensor([0, 2]))]), "class 1 has no train samples; labels found: 0, 2;"),
    (model(LOADER, [(h[:1], y[:1])]), "class 1 has no test samples; labels found: 0;"),
    (model([(h[:2], torch.tensor([0, 3]))]), "label 3 of sample 1 is not in 0..2; labels found: 0, 3;"),
    (model([(torch.from_numpy(NAN), y)]), "the train features of layer last hold NaN or inf"),
    (model(LOADER, network=infinite()), "the classifier's weight hold NaN or inf"),
    (model([(h, y - 100 - y)]), "loader: no sample is left; `ignore_index` or `mask` leaves out all"),
    (model(LOADER, classes="some"), "classes: 'some' is unknown; take 'all', 'present' or a list"),
    (model(LOADER, classes=["a", "b"]), "classes: ['a', 'b'] is unknown; take 'all', 'present' or a list"),
    (model(LOADER, classes=[0.9, 2.1]), "classes: [0.9, 2.1] is unknown; take 'all', 'present' or a list"),
    (model(LOADER, classes=[True, False, True]), "classes: [True, False, True] is unknown; take 'all', 'pre"),
    (model(LOADER, classes=2), "classes: 2 is unknown; take 'all', 'present' or a list"),
    (model(LOADER, classes=[1]), "classes: 1 of them to measure"),
    (model(LOADER, classes=[1, 1]), "classes: a number is listed twice"),
    (model(LOADER, classes=[1, 3]), "label 3 is not in 0..2"),
    (model([(h, y % 2)], classes=[0, 2]), "loader: class 2 has no samples; leave it out of `classes`"),
    (model(LOADER, mask="attention_mask"), "mask: the inputs have no 'attention_mask'"),
    (model(LOADER, mask=3), "mask: the name of an input or a function, not 3"),
    (model(LOADER, mask=lambda _: [1]), "mask: a tensor of the labels' shape, not list"),
    (model(LOADER, ignore_index="a"), "ignore_index: a whole number, not 'a'"),
    (model(LOADER, mask=lambda _: torch.ones(3)), "mask is (3,); it must have the labels' shape (30,)"),
    (
        rows(nc.measure_multilabel_model, t[:, 1:]),
        "tags are torch.int64 (30, 2); they must be 0 and 1 (n, 3),",
    ),
    (rows(nc.measure_regression_model, t), "targets are torch.int64 (30, 3); they must be floats (n, 3), as"),
    (rows(nc.measure_regression_model, t * math.nan), "train targets hold NaN"),
    (rows(nc.measure_regression_model, h, mask="mask"), "mask: does not apply to vectors; leave it out"),
    (
        model([(IDS, IDS)], network=Decoder(), head="out", select=nc.last_token),
        "select=nc.last_token finds no",
    ),
    (rows(nc.measure_regression_model, y), "targets are torch.int64 (30,); they must be floats (n, 3)"),
    (
        rows(nc.measure_regression_model, h, test_loader=3),
        "test_loader: give a DataLoader or a list of batche",
    ),
    (
        rows(nc.collect_features, y, targets="vector"),
        "targets: 'vector' is unknown; take classes, vectors, ta",
    ),
    (
        rows(nc.collect_features, t, ood_loader=LOADER, targets="tags"),
        "ood_loader: does not apply to tags; le",
    ),
    (computed([0, 3]), "class 3 has no samples; leave it out of `classes`"),
    (
        lambda: SampleAccumulator(class_statistics(h, y % 2, 2), train=class_statistics(h, y, 3)),
        "train and test differ in the number of classes: 3 and 2; give the same ones",
    ),
    # Causal models
    (causal(unembedding=None), "the model names no unembedding, and a Linear is needed; name the layer that"),
    (causal({"tokens": IDS}), "a batch has no 'labels'; it has tokens"),
    (causal(torch.zeros(3, 4)), "a batch has no labels"),
    (
        lambda: measure_causal_lm(Decoder(), 3, unembedding="out"),
        "loader: give a DataLoader or a list of batches",
    ),
    (causal(), "loader: it gave no samples; there is nothing to measure"),
    (causal((IDS, IDS + 9)), "labels name token "),
    (
        causal((IDS, IDS), min_per_class=10**5),
        "classes that occur at least 100000 times in the train split: 0 (the",
    ),
    (causal((IDS, IDS), network=diverged(), min_per_class=1), "the train features of layer last hold NaN or"),
    (causal((IDS, IDS[0])), "labels are torch.int64 (12,); they must be whole numbers (sequences, tokens)"),
    (
        causal((IDS, IDS[:, 1:])),
        "the unembedding sees (8, 12, 8) and labels are (8, 11); it must see ",
    ),
]


@pytest.mark.usefixtures("study_folder")
@pytest.mark.parametrize(("measured", "line"), MISTAKES, ids=[line[:40] for _, line in MISTAKES])
def test_what_cannot_be_measured_is_one_line(measured: Callable[[], object], line: str) -> None:
    message = refused_by(measured)
    assert message.startswith(line)
