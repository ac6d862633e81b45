"""Scripts beside the package: their names, and what a benchmark times by difference."""

import importlib.metadata
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import loaded

from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
training = loaded(ROOT / "benchmarks" / "training.py")


def times(*seconds: float) -> Callable[[], float]:
    return itertools.cycle(seconds).__next__


def test_no_script_has_the_name_of_a_module_that_others_import() -> None:
    """Python finds what lies beside a script first. Red: a `coverage.py`, which numba then imports, though it
    does without where there is none."""
    scripts = [path for folder in ("benchmarks", "docs", "stages") for path in (ROOT / folder).rglob("*.py")]
    names = "|".join({path.stem for path in scripts})
    taken = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys()
    imported = re.compile(rf"^ *(?:import|from) ({names})\b".encode(), re.M)
    for package in ("matplotlib", "numba", "pandas", "seaborn", "torch"):
        origin = importlib.util.find_spec(package).origin
        for file in Path(origin).parent.rglob("*.py"):
            taken |= {name.decode() for name in imported.findall(file.read_bytes())}
    assert len(scripts) > 20
    assert [str(path) for path in scripts if path.stem in taken] == []


@pytest.mark.parametrize(
    ("noise", "found"),
    [
        ([0, 0, 0, 0, 0], 2.0),
        ([0.1, -0.1, 0.05, 0, 30], 2.05),  # another program, once
        ([3, -3, 2, -2, 1], None),
        ([-4, -4, -4, -4, -4], None),  # less than nothing, however steady
    ],
)
def test_a_difference_is_positive_and_steady_or_not_measured(noise: list[float], found: float | None) -> None:
    """Red: the best of a few times less the best of others."""
    more = times(*(3 + extra for extra in noise))
    assert training.timed_difference(times(1), more) == (found and pytest.approx(found))


def test_it_is_repeated_until_it_is_steady() -> None:
    """Red: a fixed number of repetitions."""
    restless, steady = [5.0, 9, 1.5, 7, 4], [3.0] * 20
    assert training.timed_difference(times(1), times(*restless, *steady)) == pytest.approx(2)


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
