"""CPU time and peak memory of measuring a network, beside a pass that measures nothing.

python benchmarks/model_passes.py [threads] on a quiet machine. Each contender runs in a process of its own,
TURNS times in turns; the least CPU time counts, and ratios are to the first one's. Networks and images are
random: the time of a pass does not depend on what they hold.
"""

import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import ncpipe as nc
from ncpipe.integrations.torchmetrics import ClassCollapse, SampleCollapse

TURNS = 3
CLASSES, IMAGES, SIDE, BATCH = 10, 1000, 64, 100
TOKENS, CONTEXT, VOCABULARY = 50_000, 100, 10_000
STORED = 50_000, 2048, 1000  # samples, width, classes


class Case:
    """A network, its last layer, further layers, and batches (inputs, labels)."""

    def __init__(self, model: nn.Module, classifier: str, layers: list[str], images: Tensor) -> None:
        self.model, self.classifier, self.layers = model.eval(), classifier, layers
        labels = torch.arange(len(images)) % CLASSES
        self.batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))

    def features(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what enters the last layer, by a hook, as most scripts do."""
        seen: list[Tensor] = []
        head = self.model.get_submodule(self.classifier)
        handle = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        with torch.no_grad():
            for images, labels in self.batches:
                self.model(images)
                yield seen.pop(), labels
        handle.remove()

    @property
    def weight(self) -> Tensor:
        weight = self.model.get_submodule(self.classifier).weight
        assert isinstance(weight, Tensor)
        return weight.detach()


def resnet() -> Case:
    layers = [f"layer{number}" for number in range(1, 5)]
    return Case(torchvision.models.resnet18(num_classes=CLASSES), "fc", layers, images())


def vit() -> Case:
    model = torchvision.models.VisionTransformer(SIDE, 8, 8, 4, 256, 1024, num_classes=CLASSES)
    return Case(model, "heads.head", [], images())


def images() -> Tensor:
    return torch.randn(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def bare(case: Case) -> None:
    for _ in case.features():
        pass


def last_layer(case: Case) -> None:
    nc.measure_model(case.model, case.classifier, case.batches)


def further_layers(case: Case) -> None:
    nc.measure_model(case.model, case.classifier, case.batches, layers=case.layers)


def two_passes(case: Case) -> None:
    nc.measure_model(case.model, case.classifier, case.batches, keep=0)


def torchmetrics_classes(case: Case) -> None:
    """A metric that is updated in a pass, and one with final means in a second."""
    first = ClassCollapse(num_classes=CLASSES, width=case.weight.shape[1])
    for features, labels in case.features():
        first.update(features, labels)
    second = SampleCollapse(first.statistics(), weight=case.weight)
    for features, labels in case.features():
        second.update(features, labels)
    first.compute(), second.compute()


def published_script(case: Case) -> float:
    """As scripts beside papers do: class means in float32, then a scatter matrix, and its pseudoinverse."""
    width = case.weight.shape[1]
    sums, counts = torch.zeros(CLASSES, width), torch.zeros(CLASSES)
    for features, labels in case.features():
        for k in range(CLASSES):
            sums[k] += features[labels == k].sum(0)
            counts[k] += (labels == k).sum()
    means = sums / counts.unsqueeze(1)
    within = torch.zeros(width, width)
    for features, labels in case.features():
        for k in range(CLASSES):
            apart = features[labels == k] - means[k]
            within += apart.T @ apart / counts.sum()
    centred = means - means.mean(0)
    return float(torch.trace(within @ torch.linalg.pinv(centred.T @ centred / CLASSES)) / CLASSES)


def causal() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    sizes = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=256, n_layer=6, n_head=4)
    model = GPT2LMHeadModel(sizes).eval()
    ids = torch.randint(VOCABULARY // 10, (TOKENS // CONTEXT, CONTEXT))
    return model, [{"input_ids": part} for part in ids.split(20)]


def bare_causal(given: tuple[nn.Module, list[dict[str, Tensor]]]) -> None:
    """To the unembedding, whose logits no metric needs."""
    model, batches = given
    with torch.no_grad():
        for batch in batches:
            model.get_submodule("transformer")(**batch)


def measured_causal(given: tuple[nn.Module, list[dict[str, Tensor]]]) -> None:
    nc.measure_causal_lm(given[0], given[1], labels_key="input_ids")


def stored() -> tuple[Tensor, Tensor, Tensor]:
    samples, width, classes = STORED
    labels = torch.arange(samples) % classes
    means = torch.randn(classes, width)
    return means[labels] + 0.1 * torch.randn(samples, width), labels, means


def read(given: tuple[Tensor, Tensor, Tensor]) -> None:
    given[0].double().sum()


def measured_arrays(given: tuple[Tensor, Tensor, Tensor]) -> None:
    nc.measure(*given)


NETWORK: dict[str, Callable[[Any], object]] = {
    "a pass alone": bare,
    "ours, last layer": last_layer,
    "ours, last layer, keep=0": two_passes,
    "torchmetrics style, two passes": torchmetrics_classes,
    "published scripts' style, NC1 alone": published_script,
}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Callable[[Any], object]]]] = {
    "ResNet-18": (resnet, {**NETWORK, "ours, five layers": further_layers}),
    "ViT, 8 layers": (vit, NETWORK),
    f"causal model, {TOKENS:,} tokens": (causal, {"a pass alone": bare_causal, "ours": measured_causal}),
    "stored features, {:,} x {:,}, K = {:,}".format(*STORED): (
        stored,
        {"a sum in float64": read, "ours, every metric": measured_arrays},
    ),
}


def one(case: str, contender: str) -> None:
    """Print CPU seconds and peak memory of one contender."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    make, contenders = CASES[case]
    given = make()
    start = time.process_time()
    contenders[contender](given)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([time.process_time() - start, peak]))


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    if len(sys.argv) > 3:
        one(*sys.argv[2:4])
        return
    for case, (_, contenders) in CASES.items():
        print(f"\n{case}\n{'':38}{'CPU s':>8}{'ratio':>8}{'peak GiB':>10}")
        seconds: dict[str, float] = {}
        peaks: dict[str, float] = {}
        for _ in range(TURNS):
            for name in contenders:
                command = [sys.executable, __file__, str(threads), case, name]
                took, peak = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                seconds[name] = min(took, seconds.get(name, took))
                peaks[name] = min(peak, peaks.get(name, peak))
        least = next(iter(seconds.values()))
        for name, took in seconds.items():
            print(f"{name:38}{took:8.2f}{took / least:8.2f}{peaks[name]:10.2f}", flush=True)


if __name__ == "__main__":
    main()
