"""Callbacks in transformers' and Lightning's own trainers, on tiny models, with DVCLive's real loggers."""

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from ncpipe.integrations.monitor import CollapseMonitor
from ncpipe.metrics.table import Measurement, measure
from ncpipe.system.errors import InputError

# Lightning warns of workers, intervals, srun and of PyTorch's own deprecations; a dozen samples are few.
pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES = 3
CLOSE = 1e-12
EPOCHS = 2


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Samples as a tokenizer gives them, padded on the right; and an id that no model takes."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 20, (count, 6), generator=draw)
    lengths = torch.randint(1, 7, (count, 1), generator=draw)
    mask = (torch.arange(6) < lengths).long()
    labels = torch.arange(count) % CLASSES
    return [
        {"input_ids": i * m, "attention_mask": m, "labels": y, "sample": torch.tensor(n)}
        for n, (i, m, y) in enumerate(zip(ids, mask, labels, strict=True))
    ]


def bert() -> nn.Module:
    torch.manual_seed(0)
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=CLASSES, **tiny)
    return BertForSequenceClassification(config).double()


def trainer(model: nn.Module, folder: Path, settings: Any = (), **options: Any) -> Any:
    """Imported only now, as Lightning is: seconds, which no other worker should wait for."""
    pytest.importorskip("accelerate", reason="Trainer needs accelerate: pip install 'ncpipe[integrations]'")
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=6,
        learning_rate=1e-3,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **dict(settings),
    )
    return Trainer(model, arguments, train_dataset=texts(12, 1), **options)


@torch.no_grad()
def by_hand(model: nn.Module, data: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """What enters the last layer, without a hook, in the same batches; labels."""
    model.eval()
    features = []
    for start in range(0, len(data), 6):
        batch = {name: torch.stack([sample[name] for sample in data[start : start + 6]]) for name in data[0]}
        features.append(model.bert(batch["input_ids"], batch["attention_mask"]).pooler_output)
    return torch.cat(features), torch.stack([sample["labels"] for sample in data])


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    for own, twin in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, twin)


def named(rows: list[Measurement]) -> dict[str, float]:
    return {
        f"nc/{row.layer}/{row.split}/{row.metric}": row.value
        for row in rows
        if not row.metric.startswith("singular_")
    }


def logged(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Entries with collapse, and nothing else in them than when it was."""
    found = [entry for entry in history if any(name.startswith("nc/") for name in entry)]
    return [{n: v for n, v in entry.items() if n not in ("epoch", "step")} for entry in found]


def test_trainer_logs_what_the_table_has(tmp_path: Path) -> None:
    """At the start and after epoch 2; the epochs' losses are logged as ever, and training is the same.

    Red: `should_log` lost to the callback's own log; a generator moved on by the measurement.
    """
    model, data, held_out = bert(), texts(12, 1), texts(9, 2)
    start = measured(model, data, held_out)
    loop = trainer(model, tmp_path)
    watch(loop, "classifier", data, held_out, every=2)
    loop.train()
    end = measured(model, data, held_out)
    found = logged(loop.state.log_history)
    assert [entry["epoch"] for entry in loop.state.log_history if "nc/last/train/cdnv" in entry] == [0, 2]
    for values, wanted in zip(found, (start, end), strict=True):
        assert values == pytest.approx(wanted, rel=CLOSE, abs=CLOSE, nan_ok=True)
    assert len([entry for entry in loop.state.log_history if "loss" in entry]) == EPOCHS
    alone = bert()
    trainer(alone, tmp_path).train()
    assert_equal_weights(model, alone)


def test_trainer_measures_in_the_precision_of_its_training(tmp_path: Path) -> None:
    """Of a network that Trainer runs under autocast, `bf16=True`; training is the same."""
    model, data = bert().float(), texts(12, 1)
    loop = trainer(model, tmp_path, {"bf16": True})
    watch(loop, "classifier", data)
    loop.train()
    with torch.autocast("cpu", torch.bfloat16):
        features, labels = by_hand(model, data)
    assert features.dtype == torch.bfloat16
    rows = measure(features, labels, model.classifier.weight, model.classifier.bias)
    assert logged(loop.state.log_history)[-1] == pytest.approx(named(rows), rel=1e-9, abs=CLOSE, nan_ok=True)
    alone = bert().float()
    trainer(alone, tmp_path, {"bf16": True}).train()
    assert_equal_weights(model, alone)


@pytest.mark.parametrize("first", [True, False], ids=["evaluated first", "evaluated last"])
def test_trainer_keeps_its_own_loaders_with_persistent_workers(first: bool, tmp_path: Path) -> None:
    """Each split is measured on its own data, and `evaluate` reads its own; training is the same.

    Red: a loader of the callback's kept by Trainer as that of its evaluation set, or the kept one measured.
    """
    data, held_out = texts(12, 1), texts(9, 2)
    keep = {"dataloader_persistent_workers": True, "dataloader_num_workers": 1}

    def trained(watched: bool) -> Any:
        loop = trainer(bert(), tmp_path, keep, eval_dataset=held_out)
        if first:
            loop.evaluate()
        prepared = list(loop.accelerator._dataloaders)
        if watched:
            watch(loop, "classifier", data, held_out, every=2)
        assert loop.accelerator._dataloaders == prepared
        loop.train()
        assert loop.args.dataloader_persistent_workers
        return loop

    alone, kept = trained(False), trained(True)
    found = logged(kept.state.log_history)[-1]
    assert found == pytest.approx(measured(kept.model, data, held_out), rel=CLOSE, abs=CLOSE, nan_ok=True)
    assert kept.evaluate()["eval_loss"] == alone.evaluate()["eval_loss"]
    assert len(kept.get_eval_dataloader().dataset) == len(held_out)
    assert_equal_weights(kept.model, alone.model)


def measured(model: nn.Module, data: Any, held_out: Any) -> dict[str, float]:
    """The table's values, by hand."""
    head = (each.detach().clone() for each in (model.classifier.weight, model.classifier.bias))
    return named(measure(*by_hand(model, data), *head, *by_hand(model, held_out)))


def watch(loop: Any, *given: Any, **options: Any) -> None:
    from ncpipe.integrations.transformers import CollapseCallback

    loop.add_callback(CollapseCallback(loop, *given, **options))


def assert_written(folder: Path, values: list[float]) -> None:
    """DVCLive's file of nc/last/train/cdnv has these values, whatever it puts in front of the name."""
    [file] = folder.glob("plots/metrics/**/nc/last/train/cdnv.tsv")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [float(line.split("\t")[-1]) for line in lines[1:]] == values
    assert len(values) == EPOCHS + 1


def lightning() -> ModuleType:
    return pytest.importorskip(
        "lightning.pytorch", reason="pip install 'ncpipe[integrations]' brings Lightning"
    )


@functools.cache
def net_class() -> type[Any]:
    class Net(lightning().LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2))
            self.head = nn.Linear(6, CLASSES)
            self.double()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.body(inputs))

        def training_step(self, batch: list[Tensor], place: int) -> Tensor:
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Net


def memory() -> Any:
    """A logger of one's own."""

    class Memory(lightning().loggers.logger.Logger):
        name, version = "memory", 0

        def __init__(self) -> None:
            super().__init__()
            self.entries: list[tuple[int | None, dict[str, float]]] = []

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.entries.append((step, dict(metrics)))

        def log_hyperparams(self, *given: Any, **others: Any) -> None:
            pass

    return Memory()


def mixture(count: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(7))
    return TensorDataset((means[labels] + 0.3 * torch.randn(count, 5, generator=draw)).double(), labels)


def fit(
    model: nn.Module,
    folder: Path,
    callbacks: Any = (),
    loggers: Any = False,
    data: Any = None,
    **options: Any,
) -> Any:
    torch.manual_seed(1)
    loop = lightning().Trainer(
        max_epochs=EPOCHS,
        callbacks=list(callbacks),
        logger=loggers,
        default_root_dir=folder,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    loader = DataLoader(data or mixture(12, 1), batch_size=4, shuffle=True)
    loop.fit(model, loader)
    return loop


def callback(*given: Any, **options: Any) -> Any:
    lightning()
    from ncpipe.integrations.lightning import CollapseCallback

    return CollapseCallback(*given, **options)


def test_lightning_logs_what_the_table_has(tmp_path: Path) -> None:
    """For every logger, in float64, DVCLive's among them; training is the same.

    Red: values that went through `log`, which are float32; a generator moved on by the measurement.
    """
    dvclive = pytest.importorskip("dvclive.lightning", reason="pip install dvclive")
    model, kept = net_class()(), memory()
    data, held_out = mixture(12, 1), mixture(9, 2)
    live = dvclive.DVCLiveLogger(
        dir=str(tmp_path / "live"), save_dvc_exp=False, dvcyaml=None, monitor_system=False
    )
    door = callback(
        "head", DataLoader(data, batch_size=12, shuffle=True), DataLoader(held_out, 9), layers=["body"]
    )
    loop = fit(model, tmp_path, [door], [kept, live, lightning().loggers.CSVLogger(str(tmp_path))])
    found = [(step, values) for step, values in kept.entries if "nc/last/train/cdnv" in values]
    assert [step for step, _ in found] == [0, 3, 6]
    with torch.no_grad():
        model.eval()
        features, tested = (model.body(split.tensors[0]) for split in (data, held_out))
        head = model.head.weight, model.head.bias
        test = tested, held_out.tensors[1]
        rows = [
            *measure(features, data.tensors[1], *head, *test),
            *measure(features, data.tensors[1], None, None, *test, layer="body"),
        ]
    assert found[-1][1] == pytest.approx(named(rows), rel=1e-9, abs=CLOSE, nan_ok=True)
    assert loop.callback_metrics["nc/last/train/cdnv"] == pytest.approx(found[-1][1]["nc/last/train/cdnv"])
    assert_written(tmp_path / "live", [values["nc/last/train/cdnv"] for _, values in found])
    alone = net_class()()
    fit(alone, tmp_path)
    assert_equal_weights(model, alone)


@pytest.mark.parametrize("precision", ["bf16-true", "16-mixed"])
def test_lightning_measures_in_the_precision_of_its_training(precision: str | None, tmp_path: Path) -> None:
    """Inputs are float32 whatever the precision is, as the trainer's own; training is the same.

    Red: inputs as they are, which a bf16-true network refuses, and a mixed one measured in float32.
    """
    inputs, labels = mixture(12, 1).tensors
    data, kept = TensorDataset(inputs.float(), labels), memory()
    model = net_class()().float()
    door = callback("head", DataLoader(data, batch_size=12))
    loop = fit(model, tmp_path, [door], [kept], data, precision=precision)
    plugin = loop.precision_plugin
    with torch.no_grad(), plugin.forward_context():
        features = model.eval().body(plugin.convert_input(inputs.float()))
    rows = measure(features, labels, model.head.weight, model.head.bias)
    found = [values for _, values in kept.entries if "nc/last/train/cdnv" in values][-1]
    assert found == pytest.approx(named(rows), rel=1e-9, abs=CLOSE, nan_ok=True)
    alone = net_class()().float()
    fit(alone, tmp_path, data=data, precision=precision)
    assert_equal_weights(model, alone)


def test_every_few_epochs_and_not_between() -> None:
    door = CollapseMonitor("head", [], every=3)
    assert [epoch for epoch in (0.5, 1, 2, 3, 3.5, 4, 6) if door.due(epoch)] == [3, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier": "fc"},
         r"^classifier: the model has no layer 'fc'; its Linear layers: body\.0, head$"),
        ({"test_loader": []}, r"^test_loader: it gave no batches"),
        ({"every": 0}, r"^every: a whole number of epochs, 1 or more, not 0$"),
    ],
)  # fmt: skip
def test_lightning_mistakes_are_one_line_before_the_first_step(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = net_class()()
    given = {"classifier": "head", "loader": DataLoader(mixture(12, 1), 6)} | changes
    with pytest.raises(InputError, match=message) as caught:
        fit(model, tmp_path, [callback(**given)])
    assert "\n" not in str(caught.value)
    assert torch.equal(model.head.weight, net_class()().head.weight)
