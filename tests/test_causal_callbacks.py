"""Collapse of causal models in Trainer and Lightning: what is logged, when; training stays the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.system.errors import InputError

pytest.importorskip("accelerate")
pytest.importorskip("lightning")

import lightning
from lightning.pytorch.loggers import CSVLogger

from ncpipe.integrations.lightning import CausalCollapseCallback as LightningCallback
from ncpipe.integrations.transformers import CausalCollapseCallback, sample_subset

pytestmark = pytest.mark.filterwarnings("ignore")


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=10, n_embd=8, n_layer=1, n_head=1))


def texts(count: int = 24) -> list[dict[str, Tensor]]:
    rows = torch.randint(20, (count, 10), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(folder: Path, **options: Any) -> tuple[Trainer, dict[str, Tensor]]:
    """Two epochs of three steps, with dropout; `options` are the callback's, without them there is none."""
    arguments = TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=8, save_strategy="no", report_to="none",
        logging_steps=2, seed=3, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model(), arguments, train_dataset=texts())
    if options:
        trainer.add_callback(CausalCollapseCallback(trainer, texts(60)[24:], **options))
    trainer.train()
    return trainer, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_trainer(tmp_path: Path) -> None:
    """Red: a generator that dropout continues from is drawn from; a loss that is not logged any more."""
    alone, plain = trained(tmp_path)
    trainer, watched = trained(tmp_path, samples=16, min_per_class=2, steps=2)
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    logged = [row for row in trainer.state.log_history if "nc/last/train/cdnv" in row]
    assert [row["step"] for row in logged] == [0, 2, 4, 6]
    losses = [[row["loss"] for row in run.state.log_history if "loss" in row] for run in (alone, trainer)]
    assert losses[0] == losses[1]
    sample = sample_subset(texts(60)[24:], 16, 0)
    rows = measure_causal_lm(trainer.model.cpu(), DataLoader(sample, 8), min_per_class=2)
    wanted = {f"nc/last/{row.split}/{row.metric}": row.value for row in rows}
    assert logged[-1]["nc/last/train/tokens"] <= 16 * 9
    assert {k: wanted[k] for k in logged[-1] if k in wanted} == pytest.approx(
        {k: logged[-1][k] for k in logged[-1] if k in wanted}, rel=1e-9, nan_ok=True
    )


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.lm = model()

    def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
        loss: Tensor = self.lm(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fitted(folder: Path, callbacks: list[Any], **options: Any) -> tuple[lightning.Trainer, Module]:
    lightning.seed_everything(0, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=callbacks, logger=CSVLogger(str(folder)), accelerator="cpu",
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
        **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(texts(), 8, shuffle=True))
    return trainer, module


@pytest.mark.parametrize(("period", "steps"), [({"every": 2}, {0, 6}), ({"steps": 3}, {0, 3, 6})])
def test_lightning(tmp_path: Path, period: dict[str, int], steps: set[int]) -> None:
    """The model is found among the module's, which has no forward of its own."""
    _, alone = fitted(tmp_path / "alone", [])
    loader = DataLoader(texts(40)[24:], 8)
    trainer, module = fitted(tmp_path / "with", [LightningCallback(loader, min_per_class=1, **period)])
    for name, value in alone.state_dict().items():
        assert torch.equal(value, module.state_dict()[name]), name
    rows = trainer.logger.experiment.metrics + list(_stored(trainer))
    assert {int(row["step"]) for row in rows if row.get("nc/last/train/nc4_mismatch")} == steps


def _stored(trainer: lightning.Trainer) -> list[dict[str, Any]]:
    import csv

    with (Path(trainer.logger.log_dir) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    trainer = Trainer(model(), TrainingArguments(str(tmp_path), report_to="none"), train_dataset=texts())
    for options, message in (
        ({"steps": 0}, "steps: a whole number of training steps"),
        ({"every": 0}, "every: a whole number of epochs"),
        ({"samples": 0}, "samples: a whole number of sequences"),
    ):
        with pytest.raises(InputError, match=message):
            CausalCollapseCallback(trainer, texts(), **options)
    with pytest.raises(InputError, match="data: needs a length and at least one sample"):
        CausalCollapseCallback(trainer, [])
