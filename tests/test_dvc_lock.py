"""dvc.lock written entry by entry is to the byte what DVC writes."""

import functools
import random
from pathlib import Path
from typing import Any

import pytest
from dvc import dvcfile
from dvc.utils.serialize import _common, _yaml

from ncpipe.scheduling.dvc_lock import lock_written_by_entries
from ncpipe.scheduling.dvc_program import dump_in_order

LOCK = "dvc.lock"


def entry(stage: int, version: int) -> dict[str, Any]:
    """Of all kinds: long lines, which are broken, words and numbers that are quoted, what is empty."""
    digest = f"{version:032x}"
    return {
        "cmd": f"ncpipe train --experiment e --depth {stage}" + " --more 'words'" * 5 * version,
        "deps": [{"path": "data/code/e: ö/train.txt", "hash": "md5", "md5": digest, "size": 4234}],
        "params": {
            "params.yaml": {
                "slopes": {"draws": version, "all": [1, 2.5, 1e-5, None, True, "no", "010", "1e10", ""]},
                "empty": {},
                "none": [],
                "lines": "one\ntwo: [three]\n",
            }
        },
        "outs": [{"path": f"data/runs/e/L{stage}", "hash": "md5", "md5": "1e10", "size": 1, "nfiles": 7}],
    }


def states(seed: int) -> list[str]:
    """The file after each of some changes, of which some are of nothing, some by another's hand."""
    draw, texts = random.Random(seed), []
    Path(LOCK).unlink(missing_ok=True)
    for _ in range(8):
        with dvcfile.modify_yaml(LOCK) as content:
            if not content:
                content.update({"schema": "2.0"})
            content["stages"] = content.get("stages", {})
            for _ in range(draw.randint(0, 3)):
                stage = draw.randrange(9)
                content["stages"].update({f"train@e-{stage}": entry(stage, draw.randrange(4))})
        texts.append(Path(LOCK).read_text(encoding="utf-8"))
        edited = texts[-1].replace("size: 4234\n", "size: 4235\n", 1)
        if draw.random() < 0.3:
            Path(LOCK).write_text(edited, encoding="utf-8")
    return texts


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_text_that_dvc_writes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an entry's former text; an order of their own; lines broken elsewhere; another's edit undone."""
    monkeypatch.chdir(tmp_path)
    expected = states(seed)
    with lock_written_by_entries():
        assert states(seed) == expected


def test_it_is_parsed_once_and_an_entry_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a second look at what nobody else has written; all entries written for one."""
    monkeypatch.chdir(tmp_path)
    with dvcfile.modify_yaml(LOCK) as content:
        content.update({"schema": "2.0", "stages": {f"train@{n}": entry(n, 0) for n in range(5)}})
    parsed, written = [], []
    parse, dump = _yaml.parse_yaml, _yaml._dump
    monkeypatch.setattr(_yaml, "parse_yaml", lambda *a, **k: parsed.append(a) or parse(*a, **k))
    monkeypatch.setattr(_yaml, "_dump", lambda data, file: written.append(data) or dump(data, file))
    with lock_written_by_entries():
        for stage in range(3):
            with dvcfile.modify_yaml(LOCK) as content:
                content["stages"].update({f"train@{stage}": entry(stage, 1)})
    assert len(parsed) == 1
    assert [list(data["stages"]) for data in written] == [[f"train@{n}"] for n in range(3)]


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("schema: '2.0'\nstages:\n  a:\n    cmd: &id001 x\n  b:\n    cmd: *id001\n", False),
        ("# mine\nschema: '2.0'\nstages:\n  a:\n    cmd: x\n", False),
        ("schema: '2.0'\ndatasets: []\nstages: {a: {cmd: x}}\n", False),
        ("schema: '2.0'\nstages:\n  a:\n    cmd: x\n", True),
        ("schema: '2.0'\nstages:\n  # mine\n  a: # and this\n    cmd: x\n", False),
        ("schema: '2.0'\nstages:\n  b:\n    cmd: 'x # y'\n", False),
        ("schema: '1.0'\nstages:\n  a:\n    cmd: x\n", False),
        ("schema: '2.0'\n", False),
        ("{}\n", False),
    ],
)
def test_what_is_not_of_entries_alone_is_left_to_dvc(
    text: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: an alias without its anchor, or two of one name; comments and other keys lost."""
    monkeypatch.chdir(tmp_path)

    def written() -> str:
        Path(LOCK).write_text(text, encoding="utf-8")
        for stage in ("a", "c"):
            with dvcfile.modify_yaml(LOCK) as content:
                one = ["x"]
                new = {"cmd": one, "deps": one} if shared else {"cmd": "y"}
                content["stages"] = content.get("stages", {})
                content["stages"].update({stage: new})
        return Path(LOCK).read_text(encoding="utf-8")

    expected = written()
    with lock_written_by_entries():
        assert written() == expected


def test_an_error_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing behind in memory. Red: entries of a stage that DVC gave up."""
    monkeypatch.chdir(tmp_path)
    with dvcfile.modify_yaml(LOCK) as content:
        content.update({"schema": "2.0", "stages": {"a": entry(0, 0)}})
    before = Path(LOCK).read_bytes()

    def give_up() -> None:
        with dvcfile.modify_yaml(LOCK) as content:
            content["stages"].update({"b": entry(1, 1)})
            raise ValueError("no")

    with lock_written_by_entries():
        with dvcfile.modify_yaml(LOCK) as content:
            content["stages"].update({"a": entry(0, 0)})
        with pytest.raises(ValueError, match="no"):
            give_up()
        assert Path(LOCK).read_bytes() == before
        with dvcfile.modify_yaml(LOCK) as content:
            assert list(content["stages"]) == ["a"]
    assert Path(LOCK).read_bytes() == before


def test_whoever_writes_the_file_may_put_entries_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where runs are registered. Red: a text that is made before the writer is asked."""
    monkeypatch.chdir(tmp_path)
    names = ["train@b", "train@a", "fetch"]

    def written() -> str:
        Path(LOCK).unlink(missing_ok=True)
        with dvcfile.modify_yaml(LOCK) as content:
            content.update({"schema": "2.0", "stages": {name: entry(0, 0) for name in names}})
        ordered = functools.partial(dump_in_order, order=["fetch", "train@a", "train@b"], earlier=["fetch"])
        monkeypatch.setattr(_common, "_dump_data", ordered)
        for name in ("train@a", "train@b"):
            with dvcfile.modify_yaml(LOCK) as content:
                content["stages"].pop("fetch", None)
                content["stages"].update({name: entry(1, 1)})
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        return Path(LOCK).read_text(encoding="utf-8")

    expected = written()
    assert expected.index("train@a") < expected.index("train@b")
    with lock_written_by_entries():
        assert written() == expected
