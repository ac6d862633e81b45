"""Scripts beside the package: their names, and what a benchmark times by difference."""

import re
from pathlib import Path

import pytest
import torch
from conftest import loaded

from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def test_a_released_model_is_measured_beside_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in place of a hub, with the released model's name. Red: stories that run into each other, a
    separator that counts, a last sequence that is not full."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    script = loaded(ROOT / "benchmarks" / "released_language_models.py")
    words = {f"w{number}": number for number in range(100)}
    words_of = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    words_of.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words_of)
    model, tokens = script.random_model()
    rows = list(tokens)
    folder, text = tmp_path / "TinyStories-12x1024_10L", tmp_path / "stories.txt"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stories = [" ".join(f"w{number}" for number in row.tolist()) for row in torch.cat(rows).split(50)]
    text.write_text("\n<|endoftext|>\n".join(stories) + "\n<|endoftext|>\nw1 w2", encoding="utf-8")
    read = list(script.sequences(text, tokenizer, 64))
    assert torch.equal(torch.stack(read), torch.stack(rows))
    script.main([str(folder), "--text", str(text)])
    script.main(["--random"])
    released, random = capsys.readouterr().out.split("GPTNeo with random weights")
    numbers = [[line.split()[:2] for line in part.splitlines()[2:]] for part in (released, random)]
    assert numbers[0] == numbers[1]
    assert re.search(r"unc3_cosine +\S+ +0.3078\n", released)
    with pytest.raises(InputError, match=f"--text: {tmp_path} does not exist"):
        script.main([str(folder), "--text", str(tmp_path)])
