"""Runs that are claimed without params.yaml: what the long way would claim, and where DVC asks for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import contents, experiment_tree, flip_byte, linked, write_params
from dvc.parsing.interpolate import to_str

from ncpipe.__main__ import main
from ncpipe.artifacts import AHEAD, CODE_FILES, RUNS, seal
from ncpipe.commands.code import train_file, write_code
from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.params import load_params
from ncpipe.scheduling import tickets
from ncpipe.scheduling.pending import sweep_stamps
from ncpipe.scheduling.tickets import TICKETS, claim_by_ticket
from ncpipe.stamps import forget_code

PLACE = RUNS / "one/L2/x0.01/s1"
ITEM = {"experiment": "one", "depth": 2, "value": 0.01, "seed": 1}


def words(**changes: object) -> list[str]:
    """As DVC puts the item of a matrix into a command."""
    return to_str(ITEM | changes).split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of four has been asked for, the others wait, of which one has other data."""
    folder = tmp_path_factory.mktemp("tickets")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        forget_code()
        write_params([2], [0, 1], one=experiment_tree())
        text = Path("params.yaml").read_text(encoding="utf-8")
        axis = "\n  axis: penalty.value\n  values: [0.01, 1e-5]\n"
        Path("params.yaml").write_text(text.replace("sweep:\n", f"sweep:{axis}"), encoding="utf-8")
        for value in (0.01, 1e-5):
            fetch("one", None, value)
        write_code()
        train("one", 2, 0, workers=1, value=0.01, ahead=True)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    shutil.copytree(trained, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_all_that_wait_are_claimed_as_the_long_way_does(project: Path) -> None:
    """Red: words that are not DVC's, another run for them, files left out."""
    params = load_params()
    for stamp in sweep_stamps(params, params.compute):
        run = stamp.run
        asked = words(value=run.value, seed=run.seed)
        if (run.value, run.seed) == (0.01, 0):
            assert claim_by_ticket(asked) is None  # is there
            continue
        assert claim_by_ticket(asked) == run.name
        quick = contents(RUNS / run.path)
        assert len(quick) > 4
        shutil.rmtree(RUNS / run.path)
        train("one", 2, run.seed, workers=1, value=run.value)
        assert contents(RUNS / run.path) == quick
    assert not [path for path in AHEAD.iterdir() if path.name.endswith(".checkpoint")]


def waiting() -> Path:
    return AHEAD / json.loads(TICKETS.read_bytes())["tickets"][" ".join(words())]["key"]


def comment(path: Path) -> None:
    path.write_text("# a comment\n" + path.read_text(encoding="utf-8"), encoding="utf-8")


def another_seed(path: Path) -> None:
    """The whole folder of another run in its place."""
    other = json.loads(TICKETS.read_bytes())["tickets"][" ".join(words(value=1e-05))]["key"]
    shutil.rmtree(path)
    shutil.copytree(AHEAD / other, path)


def sealed_anew(path: Path) -> None:
    """A whole result of the same run, as of another machine."""
    key = json.loads((path / "seal.json").read_bytes())["key"]
    flip_byte(path / "model.safetensors", -100)
    seal(path, key)


def exchanged(path: Path) -> None:
    """A ticket that names another run's folder."""
    content = json.loads(path.read_bytes())
    one, other = (content["tickets"][" ".join(words(value=value))] for value in (0.01, 1e-05))
    one |= {key: other[key] for key in ("key", "seal", "sealed")}
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda: comment(Path("params.yaml")),
        lambda: comment(CODE_FILES),
        lambda: comment(train_file("one")),
        lambda: comment(Path("data/prepared/one/x0.01/facts.json")),
        lambda: CODE_FILES.unlink(),
        lambda: flip_byte(waiting() / "model.safetensors", -100),
        lambda: flip_byte(waiting() / "run.json", -100),
        lambda: flip_byte(waiting() / "seal.json", -100),
        lambda: (waiting() / "model.safetensors").unlink(),
        lambda: (waiting() / "more.csv").write_text("x"),
        lambda: linked(waiting() / "model.safetensors"),
        lambda: linked(waiting()),
        lambda: shutil.rmtree(waiting()),
        lambda: another_seed(waiting()),
        lambda: sealed_anew(waiting()),
        lambda: exchanged(TICKETS),
        lambda: TICKETS.write_text("{}"),
        lambda: TICKETS.write_text("["),
        lambda: TICKETS.unlink(),
        lambda: PLACE.mkdir(parents=True),
        lambda: Path("study.py").write_text("# code of its own\n"),
    ],
)
def test_whatever_has_changed_is_left_to_the_long_way(change, project: Path) -> None:
    """Red: a run claimed by another params.yaml, other code or data; one that is damaged, or there."""
    change()
    before = contents(project)
    assert claim_by_ticket(words()) is None
    assert contents(project) == before
    assert not (PLACE / "run.json").exists()


def test_others_words_are_left_to_the_long_way(project: Path) -> None:
    for asked in (words(seed=5), [*words(), "--alone"], words()[2:] + words()[:2], [], ["--help"]):
        assert claim_by_ticket(asked) is None


def test_code_that_has_just_been_edited_has_no_tickets(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another edit in the same tick of the clock would not show. Red: tickets by what is not settled."""
    state = json.loads(TICKETS.read_bytes())["state"]
    found = tickets.Ticket(**json.loads(TICKETS.read_bytes())["tickets"][" ".join(words())])
    monkeypatch.setattr(tickets, "files_state", lambda: state)
    for settled in (None, state):
        monkeypatch.setattr(tickets, "settled_state", lambda settled=settled: settled)
        tickets.write_tickets({" ".join(words()): found})
        assert (claim_by_ticket(words()) is None) == (settled is None)


@pytest.mark.parametrize("edited", ["params", "code"])
def test_an_edit_after_code_has_run_leaves_no_tickets(
    edited: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: tickets for runs of which DVC's stage `code` knows nothing."""
    TICKETS.unlink()
    for folder in AHEAD.iterdir():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    if edited == "params":
        text = Path("params.yaml").read_text(encoding="utf-8")
        Path("params.yaml").write_text(text.replace("gain: 1.0", "gain: 1.5"), encoding="utf-8")
    else:
        monkeypatch.setattr("ncpipe.commands.train.is_described", lambda: False)
    train("one", 2, 1, workers=1, value=1e-5)
    assert not TICKETS.exists()


def test_dvc_is_what_claims_are_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the line, the log and the place are as always, without loading what takes time.

    Red: a claim where a user trains by hand; a command line that is loaded all the same."""
    monkeypatch.setattr("ncpipe.cli.run_cli", lambda: pytest.fail("the long way"))
    monkeypatch.setattr(sys, "argv", ["ncpipe", "train", *words()])
    monkeypatch.setenv("DVC_STAGE", "train@one-2-0.01-1")
    main()
    assert (PLACE / "run.json").is_file()
    assert Path("data/logs/stages.csv").read_text().splitlines()[1].startswith("train,one-2-0.01-1,")
    monkeypatch.delenv("DVC_STAGE")
    shutil.rmtree(PLACE)
    with pytest.raises(pytest.fail.Exception):
        main()
    loaded = "import sys, ncpipe.scheduling.tickets; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(tickets.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True, env=environment
    )
    heavy = {"pydantic", "typer", "yaml", "numpy", "torch", "dvc", "psutil", "tqdm", "filelock"}
    assert not heavy & set(done.stdout.split())
