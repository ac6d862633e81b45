"""Callbacks in transformers' and Lightning's own trainers, on tiny models; training stays the same."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.table import Measurement, measure
from ncpipe.system.errors import InputError

# Lightning warns of workers, intervals, srun and of PyTorch's own deprecations; a dozen samples are few.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("accelerate", "lightning"))),
        reason="pip install 'ncpipe[integrations]'",
    ),
]
CLASSES = 3
CLOSE = {"rel": 1e-9, "abs": 1e-12, "nan_ok": True}
EPOCHS = 2
CDNV = "nc/last/train/cdnv"


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
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=CLASSES, **tiny)
    return transformers.BertForSequenceClassification(config).double()


def sequences(count: int) -> list[dict[str, Tensor]]:
    rows = torch.randint(20, (count, 10), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=10, n_embd=8, n_layer=1, n_head=1)
    return transformers.GPT2LMHeadModel(config)


def trainer(model: nn.Module, data: Any, folder: Path, evaluated: Any = None, **settings: Any) -> Any:
    """Two epochs of three steps, with dropout."""
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=len(data) // 3,
        per_device_eval_batch_size=6,
        learning_rate=1e-3,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **settings,
    )
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=evaluated)


def measured(model: nn.Module, *splits: list[dict[str, Tensor]]) -> dict[str, float]:
    """By name, of batches in the form of Trainer's collator."""
    names = ("input_ids", "attention_mask", "labels")
    loaders = [
        [{n: torch.stack([one[n] for one in data[start : start + 6]]) for n in names} for start in (0, 6)]
        for data in splits
    ]
    return named(measure_model(model, "classifier", *loaders))


def named(rows: list[Measurement]) -> dict[str, float]:
    return {
        f"nc/{row.layer}/{row.split}/{row.metric}": row.value
        for row in rows
        if not row.metric.startswith("singular_")
    }


def logged(loop: Any) -> list[dict[str, float]]:
    """Entries with collapse, and nothing else in them than when it was."""
    entries = [entry for entry in loop.state.log_history if any(name.startswith("nc/") for name in entry)]
    return [{n: v for n, v in entry.items() if n not in ("epoch", "step")} for entry in entries]


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    for weight, twin in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, twin)


def test_trainer_logs_what_the_table_has(tmp_path: Path) -> None:
    """At the start and after epoch 2; the epochs' losses are logged as ever, and training is the same.

    Red: `should_log` lost to the callback's own log; a generator moved on by the measurement.
    """
    from ncpipe.integrations.transformers import CollapseCallback

    model, data, held_out = bert(), texts(12, 1), texts(9, 2)
    start = measured(model, data, held_out)
    loop = trainer(model, data, tmp_path)
    callback = CollapseCallback(loop, "classifier", data, held_out, every=2)
    loop.add_callback(callback)
    loop.train()
    assert list(callback.monitor.history) == [0, 2]
    assert [entry["epoch"] for entry in loop.state.log_history if CDNV in entry] == [0, 2]
    for values, expected in zip(logged(loop), (start, measured(model, data, held_out)), strict=True):
        assert values == pytest.approx(expected, **CLOSE)
    assert len([entry for entry in loop.state.log_history if "loss" in entry]) == EPOCHS
    alone = bert()
    trainer(alone, data, tmp_path).train()
    assert_equal_weights(model, alone)


def test_trainer_is_measured_after_epochs_of_a_stream(tmp_path: Path) -> None:
    """Its epochs have no length, so Trainer counts them in shares of all steps. Red: never measured."""
    from ncpipe.integrations.transformers import CollapseCallback

    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(texts(12, 1))

    loop = trainer(bert(), texts(12, 1), tmp_path, max_steps=8)
    loop.train_dataset = Stream()
    loop.add_callback(CollapseCallback(loop, "classifier", texts(12, 1), every=2))
    loop.train()
    assert [row["step"] for row in loop.state.log_history if CDNV in row] == [0, 6]


def test_trainer_keeps_its_own_loaders_with_persistent_workers(tmp_path: Path) -> None:
    """Each split is measured on its own data, and `evaluate` reads its own.

    Red: a loader of the callback's kept by Trainer as that of its evaluation set.
    """
    from ncpipe.integrations.transformers import CollapseCallback

    data, held_out = texts(12, 1), texts(9, 2)
    loop = trainer(
        bert(), data, tmp_path, held_out, dataloader_persistent_workers=True, dataloader_num_workers=1
    )
    prepared = list(loop.accelerator._dataloaders)
    loop.add_callback(CollapseCallback(loop, "classifier", data, held_out, every=2))
    assert loop.accelerator._dataloaders == prepared
    loop.train()
    assert loop.args.dataloader_persistent_workers
    assert logged(loop)[-1] == pytest.approx(measured(loop.model, data, held_out), **CLOSE)
    assert len(loop.get_eval_dataloader().dataset) == len(held_out)


def test_trainer_of_a_causal_model(tmp_path: Path) -> None:
    """Of 16 drawn sequences, every two steps."""
    from ncpipe.integrations.transformers import CausalCollapseCallback, sample_subset

    validation = sequences(60)[24:]
    loop = trainer(gpt2(), sequences(24), tmp_path)
    loop.add_callback(CausalCollapseCallback(loop, validation, samples=16, min_per_class=2, steps=2))
    loop.train()
    assert [row["step"] for row in loop.state.log_history if CDNV in row] == [0, 2, 4, 6]
    batches = DataLoader(sample_subset(validation, 16, 0), 6)
    expected = named(measure_causal_lm(loop.model, batches, min_per_class=2))
    assert expected["nc/last/train/tokens"] <= 16 * 9
    assert logged(loop)[-1] == pytest.approx(expected, **CLOSE)
    alone = gpt2()
    trainer(alone, sequences(24), tmp_path).train()
    assert_equal_weights(loop.model, alone)


def test_lightning_logs_what_the_table_has(tmp_path: Path) -> None:
    """For every logger, in float64, DVCLive's among them; training is the same.

    Red: values that went through `log`, which are float32; a generator moved on by the measurement.
    """
    from lightning_loops import Net, fit, mixture

    from ncpipe.integrations.lightning import CollapseCallback

    dvclive = pytest.importorskip("dvclive.lightning", reason="pip install dvclive")
    model, data, held_out = Net(), mixture(12, 1), mixture(9, 2)
    live = dvclive.DVCLiveLogger(
        dir=str(tmp_path / "live"), save_dvc_exp=False, dvcyaml=None, monitor_system=False
    )
    loaders = DataLoader(data, batch_size=12, shuffle=True), DataLoader(held_out, 9)
    callback = CollapseCallback("head", *loaders, layers=["body"])
    loop, entries = fit(model, data, tmp_path, [callback], [live])
    assert list(callback.history) == [0, 1, 2]
    assert [step for step, _ in entries] == [0, 3, 6]
    rows = measure_model(model, "head", [data[:]], [held_out[:]], layers=["body"])
    assert entries[-1][1] == pytest.approx(named(rows), **CLOSE)
    assert loop.callback_metrics[CDNV] == pytest.approx(entries[-1][1][CDNV])
    [file] = (tmp_path / "live").glob(f"plots/metrics/**/{CDNV}.tsv")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [float(line.split("\t")[-1]) for line in lines[1:]] == [values[CDNV] for _, values in entries]
    alone = Net()
    fit(alone, data, tmp_path)
    assert_equal_weights(model, alone)


@pytest.mark.parametrize("precision", ["bf16-true", "16-mixed"])
def test_lightning_measures_in_the_precision_of_its_training(precision: str, tmp_path: Path) -> None:
    """Inputs are float32 whatever the precision is, as the trainer's own.

    Red: inputs as they are, which a bf16-true network refuses, and a mixed one measured in float32.
    """
    from lightning_loops import Net, fit, mixture

    from ncpipe.integrations.lightning import CollapseCallback

    inputs, labels = mixture(12, 1).tensors
    data, model = TensorDataset(inputs.float(), labels), Net().float()
    callback = CollapseCallback("head", DataLoader(data, batch_size=12))
    loop, entries = fit(model, data, tmp_path, [callback], precision=precision)
    plugin = loop.precision_plugin
    with torch.no_grad(), plugin.forward_context():
        features = model.eval().body(plugin.convert_input(inputs.float()))
    rows = measure(features, labels, model.head.weight, model.head.bias)
    assert entries[-1][1] == pytest.approx(named(rows), **CLOSE)


@pytest.mark.parametrize(("period", "steps"), [({"every": 2}, [0, 6]), ({"steps": 3}, [0, 3, 6])])
def test_lightning_of_a_causal_model(period: dict[str, int], steps: list[int], tmp_path: Path) -> None:
    """The model is found among the module's."""
    from lightning_loops import Decoder, fit

    from ncpipe.integrations.lightning import CausalCollapseCallback

    loader = DataLoader(sequences(40)[24:], 8)
    callback = CausalCollapseCallback(loader, test_loader=loader, min_per_class=1, **period)
    _, entries = fit(Decoder(), sequences(24), tmp_path, [callback])
    assert [step for step, _ in entries] == steps
    assert list(callback.history) == [step / 3 for step in steps]
    assert entries[-1][1][CDNV.replace("train", "test")] == entries[-1][1][CDNV]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier": "fc"},
         r"^classifier: the model has no layer 'fc'; its Linear layers: body\.0, head$"),
        ({"test_loader": []}, r"^test_loader: it gave no samples"),
    ],
)  # fmt: skip
def test_lightning_mistakes_are_one_line_before_the_first_step(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    from lightning_loops import Net, fit, mixture

    from ncpipe.integrations.lightning import CollapseCallback

    model = Net()
    given = {"classifier": "head", "loader": DataLoader(mixture(12, 1), 6)} | changes
    with pytest.raises(InputError, match=message):
        fit(model, mixture(12, 1), tmp_path, [CollapseCallback(**given)])
    assert_equal_weights(model, Net())


def test_two_callbacks_of_one_trainer_have_names_of_their_own(tmp_path: Path) -> None:
    """Red: the mean of both under one name, which Lightning makes of values that are logged twice."""
    from lightning_loops import Net, fit, mixture

    from ncpipe.integrations.lightning import CollapseCallback

    few, all_of_it = (DataLoader(mixture(count, 1), count) for count in (6, 12))
    with pytest.raises(InputError, match="two callbacks log nc/"):
        fit(Net(), mixture(12, 1), tmp_path, [CollapseCallback("head", few), CollapseCallback("head", few)])
    model = Net()
    callbacks = [CollapseCallback("head", few, prefix="few"), CollapseCallback("head", all_of_it)]
    loop, _ = fit(model, mixture(12, 1), tmp_path, callbacks)
    for prefix, loader in (("few", few), ("nc", all_of_it)):
        value = measure_model(model, "head", loader)["last", "train", "cdnv"]
        assert loop.callback_metrics[f"{prefix}/last/train/cdnv"].item() == pytest.approx(value, rel=1e-6)


def test_mistakes_of_causal_callbacks_are_one_line(tmp_path: Path) -> None:
    from ncpipe.integrations.transformers import CausalCollapseCallback

    loop = trainer(gpt2(), sequences(24), tmp_path)
    for options, message in (
        ({"steps": 0}, "steps: a whole number of training steps"),
        ({"every": 0}, "every: a whole number of epochs, 1 or more, not 0"),
        ({"samples": 0}, "samples: a whole number of sequences"),
    ):
        with pytest.raises(InputError, match=message):
            CausalCollapseCallback(loop, sequences(24), **options)
    with pytest.raises(InputError, match="data: needs a length and at least one sample"):
        CausalCollapseCallback(loop, [])
