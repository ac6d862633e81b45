"""Lightning's trainer on tiny modules; apart from the tests, because importing it takes seconds."""

import csv
from pathlib import Path
from typing import Any

import torch
from lightning import pytorch as lightning
from test_callbacks import CDNV, CLASSES, EPOCHS, gpt2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
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


class Decoder(lightning.LightningModule):
    """It has no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lm = gpt2()

    def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
        loss: Tensor = self.lm(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def mixture(count: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(7))
    return TensorDataset((means[labels] + 0.3 * torch.randn(count, 5, generator=draw)).double(), labels)


def fit(
    model: nn.Module, data: Any, folder: Path, callbacks: Any = (), loggers: Any = (), **options: Any
) -> tuple[Any, list[tuple[int, dict[str, float]]]]:
    """Two epochs of three steps; what was logged of collapse, with its steps."""
    torch.manual_seed(1)
    kept = lightning.loggers.CSVLogger(str(folder))
    loop = lightning.Trainer(
        max_epochs=EPOCHS,
        callbacks=list(callbacks),
        logger=[kept, *loggers],
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    loop.fit(model, DataLoader(data, batch_size=len(data) // 3, shuffle=True))
    path = Path(kept.log_dir) / "metrics.csv"
    rows = list(csv.DictReader(path.open())) if path.is_file() else []
    return loop, [
        (int(row["step"]), {name: float(value) for name, value in row.items() if name[:3] == "nc/" and value})
        for row in rows
        if row.get(CDNV)
    ]
