"""ResNets on CIFAR-10 with random crops and flips: their keys, images, network and training loop."""

from dataclasses import dataclass
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import nn
from torchvision.models.resnet import BasicBlock

from ncpipe.study import Count, NonNegative, OwnTraining, Positive, Training


@dataclass(frozen=True)
class ResNetTraining(OwnTraining):
    name: Literal["resnet"]
    width: Count
    learning_rate: Positive
    weight_decay: NonNegative
    batch_size: Count
    epochs: Count


class Crops:
    """Batches of images (N, 3, 32, 32) in a new order, moved by up to four pixels, half of them mirrored."""

    def __init__(self, images, labels, size):
        self.images, self.labels, self.size = nn.functional.pad(images, (4, 4, 4, 4)), labels, size

    def __iter__(self):
        for batch in torch.randperm(len(self.labels)).split(self.size):
            down, right = torch.randint(9, (2, len(batch), 1, 1))
            rows, columns = down + torch.arange(32).view(1, 32, 1), right + torch.arange(32).view(1, 1, 32)
            mirrored = torch.rand(len(batch), 1, 1) < 0.5
            columns = torch.where(mirrored, columns.flip(2), columns)
            cut = self.images[batch].permute(0, 2, 3, 1)[
                torch.arange(len(batch)).view(-1, 1, 1), rows, columns
            ]
            yield cut.permute(0, 3, 1, 2), self.labels[batch]


def loaders(spec, seed):
    data = load_file("data/images.safetensors")
    train, *measured = (
        (data[f"{name}x"], data[f"{name}y"]) for name in ("", "", "test_", "digits_", "digits_")
    )
    return Crops(*train, spec.batch_size), *(batches(x, y) for x, y in measured)


def batches(x, y):
    return list(zip(x.split(250), y.split(250), strict=True))


class ResNet(nn.Module):
    """A ResNet of basic blocks whose first convolution halves the image: three stages of `blocks` each."""

    def __init__(self, blocks, width):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.layer1 = nn.Sequential(*(BasicBlock(width, width) for _ in range(blocks)))
        self.layer2 = smaller(blocks, width)
        self.layer3 = smaller(blocks, 2 * width)
        self.fc = nn.Linear(4 * width, 10)

    def forward(self, x):
        x = x.contiguous(memory_format=torch.channels_last)
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


def smaller(blocks, width):
    shortcut = nn.Sequential(nn.Conv2d(width, 2 * width, 1, 2, bias=False), nn.BatchNorm2d(2 * width))
    first = BasicBlock(width, 2 * width, 2, shortcut)
    return nn.Sequential(first, *(BasicBlock(2 * width, 2 * width) for _ in range(blocks - 1)))


def build(spec, depth):
    return ResNet((depth - 2) // 6, spec.width)


def train(model, spec, seed, device, log):
    train_batches, _, test_batches, *_ = loaders(spec, seed)
    optimizer = torch.optim.SGD(
        model.parameters(), spec.learning_rate, 0.9, weight_decay=spec.weight_decay, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, spec.epochs)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if state := log.resume():
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(log.epoch + 1, spec.epochs + 1):
        model.train()
        loss_sum = wrong = 0
        for x, y in train_batches:
            logits, y = model(x.to(device)), y.to(device)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum, wrong = loss_sum + len(y) * loss.item(), wrong + (logits.argmax(1) != y).sum().item()
        rate = schedule.get_last_lr()[0]
        schedule.step()
        count = len(train_batches.labels)
        log(
            epoch,
            loss=loss_sum / count,
            train_error=wrong / count,
            test_error=error(model, test_batches, device),
            learning_rate=rate,
        )
        log.checkpoint({name: part.state_dict() for name, part in parts.items()})


@torch.no_grad()
def error(model, batches, device):
    model.eval()
    wrong = [(model(x.to(device)).argmax(1).cpu() != y).float().mean().item() for x, y in batches]
    return sum(wrong) / len(wrong)


TRAININGS = {ResNetTraining: Training(build, loaders, train)}
