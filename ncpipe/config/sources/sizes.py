"""Refuse draws of more samples than a known data set has, before anything is downloaded."""

from types import MappingProxyType

# Samples of the smallest class in the training and the test split.
SMALLEST = MappingProxyType(
    {
        "mnist": (5421, 892),
        "fashion_mnist": (6000, 1000),
        "kmnist": (6000, 1000),
        "cifar10": (5000, 1000),
        "cifar100": (500, 100),
        "svhn": (4659, 1595),
        "imdb": (12500, 12500),
    }
)
DIGITS = 174  # in all: there the test samples are drawn from those that training leaves


def check_sizes(source: str, per_class: int, test_per_class: int | None = None) -> None:
    """Raise ValueError if a class of the source has fewer samples than are to be drawn of each."""
    train, test = SMALLEST.get(source, (DIGITS, DIGITS - per_class))
    for key, split, drawn, most in (
        ("per_class", "training", per_class, train),
        ("test_per_class", "test", test_per_class or 0, test),
    ):
        if drawn > most:
            raise ValueError(
                f"{key}: {drawn}, but {source} has {most} {split} samples of its smallest class; lower {key}"
            )
