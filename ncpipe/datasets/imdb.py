"""The Large Movie Review Dataset v1.0 (Maas et al., ACL 2011): its files and balanced draws of token ids."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from ncpipe.config.sources.reviews import TextData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split, draw_balanced
from ncpipe.datasets.review_tokens import Tokenizer, encode, id_count, load_tokenizer, tokenizer_facts
from ncpipe.datasets.sources import find_official, progress_bar, read_members
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
ARCHIVE = "aclImdb_v1.tar.gz"
ARCHIVE_MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
FOLDER = "aclImdb"
LABELS = {"neg": 0, "pos": 1}
PER_FOLDER = 12500
# Of the labelled reviews themselves (see digest_of), so that a repacked archive is recognised.
DIGESTS = {
    "train": "6fda854ebfdae8d72f130d898bd6efa555dfbd6fdaa06af822d978979ec69ac6",
    "test": "3464942e3897d656704360b58d7d9d5ca899dbfd19e0a736a8538cbe0ef6dcef",
}
REVIEW = re.compile(rf"{FOLDER}/((?:train|test)/(?:neg|pos)/[^/]+\.txt)")
Reviews = Mapping[str, bytes]


def prepare_imdb(spec: TextData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Return tokens (N, context) int64, with label 0 for negative and 1 for positive reviews."""
    reviews = _official_reviews(raw, mirror, progress, DIGESTS)
    corpus = texts_of(reviews, "train") if spec.tokenizer == "corpus" else []
    tokenizer = load_tokenizer(spec, corpus, progress)
    # Before anything is encoded: encoding writes the truncation into the tokenizer's JSON.
    tokenizer_description = tokenizer_facts(spec, tokenizer)
    train = _draw(reviews, "train", spec.per_class, spec, tokenizer)
    test = _draw(reviews, "test", spec.test_per_class, spec, tokenizer)
    raw_facts = {f"{FOLDER}/{split}": f"sha256:{digest}" for split, digest in DIGESTS.items()}
    facts = describe(spec.source, len(LABELS), spec.seed, train, test, raw_facts) | {
        "official": dict.fromkeys(DIGESTS, len(LABELS) * PER_FOLDER),
        "tokenizer": tokenizer_description,
    }
    return Prepared("tokens", len(LABELS), id_count(tokenizer), train, test, facts)


def read_training_reviews(raw: Path, mirror: Path | None, progress: bool) -> tuple[list[str], dict[str, str]]:
    """Return the texts of the official training reviews, and their checksum."""
    reviews = _official_reviews(raw, mirror, progress, ["train"])
    return texts_of(reviews, "train"), {f"{FOLDER}/train": f"sha256:{DIGESTS['train']}"}


def _official_reviews(raw: Path, mirror: Path | None, progress: bool, splits: Iterable[str]) -> Reviews:
    """Return the labelled reviews, of which those of some splits are compared with the official ones."""
    names = [FOLDER, ARCHIVE, "aclImdb_v1*.tar.xz"]
    place = find_official(raw / ARCHIVE, ARCHIVE_MD5, [URL], mirror, names, progress)
    reviews = read_reviews(place, progress)
    for split in splits:
        _verify(reviews, split, place)
    return reviews


def read_reviews(place: Path, progress: bool) -> Reviews:
    """Return the labelled reviews of an archive or folder `aclImdb`, by name such as `train/neg/0_3.txt`."""
    total = len(DIGESTS) * len(LABELS) * PER_FOLDER
    reviews = {}
    with progress_bar(progress, total=total, desc=f"reading {place.name}") as bar:
        for name, content in _entries(place):
            match = REVIEW.fullmatch(name)
            assert match is not None
            reviews[match[1]] = content
            bar.update()
    return reviews


def _entries(place: Path) -> Iterator[tuple[str, bytes]]:
    if place.is_file():
        yield from read_members(place, lambda name: REVIEW.fullmatch(name) is not None)
        return
    for split in DIGESTS:
        for label in LABELS:
            for path in (place / split / label).glob("*.txt"):
                yield f"{FOLDER}/{split}/{label}/{path.name}", path.read_bytes()


def _verify(reviews: Reviews, split: str, place: Path) -> None:
    """Raise InputError, naming the folder where reviews are missing or the split where one was altered."""
    counts = Counter(name.rpartition("/")[0] for name in reviews)
    for label in LABELS:
        folder = f"{split}/{label}"
        if counts[folder] != PER_FOLDER:
            raise InputError(
                f"{place}: {FOLDER}/{folder} has {counts[folder]} reviews, the official one {PER_FOLDER}; "
                f"delete {place.name} and fetch it again"
            )
    if digest_of(reviews, split) != DIGESTS[split]:
        raise InputError(
            f"{place}: a review of {FOLDER}/{split} is not the official one (SHA-256 of the split differs); "
            f"delete {place.name} and fetch it again"
        )


def digest_of(reviews: Reviews, split: str) -> str:
    """Return SHA-256 over the names, sizes and bytes of a split's reviews in the order of their names."""
    digest = hashlib.sha256()
    for name in _names(reviews, split):
        digest.update(f"{name}\0{len(reviews[name])}\0".encode())
        digest.update(reviews[name])
    return digest.hexdigest()


def _names(reviews: Reviews, split: str) -> list[str]:
    return sorted(name for name in reviews if name.startswith(f"{split}/"))


def texts_of(reviews: Reviews, split: str) -> list[str]:
    """Return a split's reviews in the order of their names, so negative ones first, without <br /> tags."""
    return [reviews[name].decode("utf-8").replace("<br />", " ") for name in _names(reviews, split)]


def _draw(reviews: Reviews, split: str, per_class: int | None, spec: TextData, tokenizer: Tokenizer) -> Split:
    labels = torch.tensor([LABELS[name.split("/")[1]] for name in _names(reviews, split)])
    chosen = draw_balanced(
        labels, len(LABELS), per_class, seeded_generator(spec.seed, f"data {split}"), split
    )
    texts = texts_of(reviews, split)
    tokens, lengths = encode(tokenizer, [texts[index] for index in chosen.tolist()], spec.context)
    return Split(tokens, labels[chosen], lengths)
