"""Measure released TinyStories models, beside the table of their authors [Wu, Papyan, arXiv 2405.17767].

    uv run python benchmarks/released_language_models.py [MODEL ...] [--text FILE] [--sequences 2000]
    uv run python benchmarks/released_language_models.py --random

MODEL: a name on a hub, or a folder with a model and its tokenizer. The text is TinyStories' training file of
the hub unless FILE is given; both need a hub within reach. --random measures a small model of the same class
with random weights, on random tokens, without a hub.

The authors measure all training stories, and 29,233 tokens as classes; on fewer sequences there are fewer
classes and samples, which move every value. Their NC4 is that of validation stories. Their CDNV has the
fourth power of the distance, and is left out.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTNeoConfig, GPTNeoForCausalLM

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.system.errors import InputError
from ncpipe.system.text_table import aligned

MODELS = ["rhubarbwu/TinyStories-12x1024_10L"]
TOKENIZER = "EleutherAI/gpt-neo-125M"  # of models without their own
STORIES = ("roneneldan/TinyStories", "TinyStories-train.txt")  # data set of the hub, and its file
SEPARATOR = "<|endoftext|>"  # between stories
LENGTH = 2048  # tokens of a sequence
# From lc-2024_10_24.csv of the authors' code: roots of variances, norms_var^(1/2) / norms_mean, and for NC4
# misses over all.
TABLE = {
    "TinyStories-12x1024_10L": {
        "nc2_equinorm_means": 207.0923400123469**0.5 / 56.682931299531575,
        "gnc2_energy_means": -0.3420341312885284,
        "gnc2_spread_means": 0.004976037889719**0.5,
        "unc3_cosine": 0.3078193664550781,
        "unc3_spread": 0.0491277910768985**0.5,
        "nc4_mismatch": 2977718 / (1736473 + 2977718),
    }
}
SHOWN = ("classes", "tokens", "cdnv", *TABLE["TinyStories-12x1024_10L"])


def random_model() -> tuple[nn.Module, Iterator[Tensor]]:
    """Return a small GPTNeo with random weights, and sequences (64,) of tokens with Zipf's frequencies."""
    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=100,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]],
        bos_token_id=0,
        eos_token_id=0,
    )
    tokens = torch.multinomial(1 / torch.arange(1.0, 101), 64 * 64, replacement=True)
    return GPTNeoForCausalLM(config), iter(tokens.split(64))


def released_model(name: str, text: Path | None) -> tuple[nn.Module, Iterator[Tensor]]:
    """Return a model by its name or folder, and the sequences of a text; InputError for what is not found."""
    try:
        model = AutoModelForCausalLM.from_pretrained(name)
        own = Path(name, "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(name if own else TOKENIZER)
        file = text or Path(_downloaded(*STORIES))
    except OSError as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}; is a hub within reach?") from None
    if not file.is_file():
        raise InputError(f"--text: {file} does not exist")
    return model, sequences(file, tokenizer, min(LENGTH, model.config.max_position_embeddings))


def sequences(file: Path, tokenizer: Any, length: int) -> Iterator[Tensor]:
    """Yield the stories' tokens one after another, `length` of them at a time; the rest is left out."""
    held: list[int] = []
    for story in _stories(file):
        held += tokenizer(story)["input_ids"]
        while len(held) >= length:
            yield torch.tensor(held[:length])
            held = held[length:]


def table_of(model: nn.Module, tokens: Iterator[Tensor], count: int, device: str, name: str) -> list[str]:
    """Return the lines of a table of the metrics on `count` sequences, and what the authors have."""
    batches = ({"input_ids": row[None], "labels": row[None]} for row in islice(tokens, count))
    values = measure_causal_lm(model, batches, device=device).select(layer="last", split="train")
    theirs = TABLE.get(name.rstrip("/").rpartition("/")[2], {})
    rows = [[metric, f"{values[metric]:.4g}", _cell(theirs.get(metric))] for metric in SHOWN]
    return [name, *aligned([["metric", "here", "their table"], *rows], right=(1, 2))]


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--text", type=Path, help="stories, with <|endoftext|> between them")
    parser.add_argument("--sequences", type=int, default=2000, help="sequences of 2,048 tokens to measure")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--random", action="store_true", help="a small model with random weights instead")
    arguments = parser.parse_args(given)
    for name in ["GPTNeo with random weights"] if arguments.random else arguments.models:
        model, tokens = random_model() if arguments.random else released_model(name, arguments.text)
        print("\n".join(table_of(model, tokens, arguments.sequences, arguments.device, name)))


def _downloaded(repository: str, file: str) -> str:
    from huggingface_hub import hf_hub_download

    return hf_hub_download(repository, file, repo_type="dataset")


def _stories(file: Path) -> Iterator[str]:
    story: list[str] = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() == SEPARATOR:
                yield "".join(story).strip()
                story = []
            else:
                story.append(line)
    yield "".join(story).strip()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
