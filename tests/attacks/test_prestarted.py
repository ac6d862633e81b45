"""What starts from a seed behaves as what Python starts: the long forms of attacks rest on it.

Each test's docstring ends with the fault that would turn it red.
"""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import prestarted as module
import pytest
from dvc.utils.serialize import _yaml
from prestarted import Popen, _parse_once, bury_orphans, prestarted

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adopts orphans by prctl")
TELL = """
import os, signal, sys
print(sys.argv, os.getcwd(), dict(os.environ), sys.path, os.getppid(), os.getpid() == os.getsid(0))
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.stdin.read())
print(sorted(os.listdir("/proc/self/fd"))[:3], sys.dont_write_bytecode, file=sys.stderr)
"""
# Says who it is, starts the rest of its arguments as another of these, and waits for good.
CHAIN = """
import os, subprocess, sys, time
print(os.getpid(), os.getppid(), flush=True)
if sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
time.sleep(20)
"""


@pytest.fixture(scope="module")
def seed() -> Iterator[None]:
    """What starts Python while it is in use starts it from a seed."""
    with prestarted(os.environ, imports=()):
        yield
        bury_orphans()


def python(source: str, *words: str) -> list[str]:
    return [sys.executable, "-c", source, *words]


def tell(folder: Path, session: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python(TELL), "a", "b c"],
        cwd=folder,
        env={
            "LC_ALL": "C.UTF-8",  # else Python sets another
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(folder),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=session,
    )


@pytest.mark.parametrize("session", [False, True])
def test_a_program_sees_what_it_would_see(session: bool, seed: None, tmp_path: Path) -> None:
    """Red: another parent, folder, environment, path or handler than Python gives it, or a file too many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen.__bases__[0])
        real = tell(tmp_path, session)
    forked = tell(tmp_path, session)
    assert forked.stdout == real.stdout
    assert forked.stderr == real.stderr


# Background jobs of a shell, of which pytest may be one, are told to ignore it.
INTERRUPTED = """import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(9)"""


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("raise SystemExit", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit('why')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        (INTERRUPTED, -2),
        ("import os, sys; os.execvp(sys.executable, [sys.executable, '-c', 'raise SystemExit(3)'])", 3),
        ("import os; os.execvp('sh', ['sh', '-c', 'exit 4'])", 4),
        ("import atexit, os; atexit.register(os._exit, 5)", 5),
        ("import threading, os; threading.Timer(0.1, os._exit, (6,)).start()", 6),
    ],
)
def test_a_program_ends_as_it_would_end(source: str, code: int, seed: None) -> None:
    """Red: a signal that is turned into a code; threads that are not waited for."""
    assert subprocess.run(python(source), stderr=subprocess.DEVNULL, check=False).returncode == code


def test_a_start_that_fails_is_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the next one begins. Red: the seed waits for ever for what a fork says that has ended."""
    failing = "prestarted._new_session = lambda: 1 / 0; prestarted.plant("
    monkeypatch.setattr(module, "PLANT", module.PLANT.replace("prestarted.plant(", failing))
    with prestarted(os.environ, imports=()):
        with pytest.raises(AssertionError, match="has not started"):
            subprocess.run(python("pass"), check=False, start_new_session=True)
        assert subprocess.run(python("raise SystemExit(3)"), check=False).returncode == 3
        bury_orphans()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_shell_goes_on_only_after_what_went_well(seed: None, tmp_path: Path) -> None:
    """Red: `&&` read as `;`."""
    script = Path(tmp_path / "script")
    script.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nsys.exit(int(sys.argv[1]))\n")
    script.chmod(0o755)
    line = f"{script} 0 'a b' && {script} 3 && {script} 0"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == "['0', 'a b']\n['3']\n"


def test_only_programs_of_a_checkout_have_what_its_seed_has_imported(tmp_path: Path) -> None:
    """Red: another checkout's program, or one of the installed package, that runs this one's modules."""
    for name in ("checkout", "other"):
        package = tmp_path / name / "ncpipe"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("import os\nPID = os.getpid()\n")
        (package / "part.py").write_text("import os\nPID = os.getpid()\n")
    source = python(
        "import os, ncpipe.part; print(ncpipe.__file__, ncpipe.PID, ncpipe.part.PID, os.getpid())"
    )
    found = []
    with prestarted(os.environ, imports=(), checkout=tmp_path / "checkout", own=("ncpipe.part",)):
        for name in ("checkout", "other"):
            environment = os.environ | {"PYTHONPATH": str(tmp_path / name)}
            done = subprocess.run(
                source, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
            )
            found.append(done.stdout.split())
        bury_orphans()
    for (file, *numbers), name in zip(found, ("checkout", "other"), strict=True):
        assert file == str(tmp_path / name / "ncpipe" / "__init__.py")
        assert len(set(numbers)) == (2 if name == "checkout" else 1)


def test_what_was_parsed_once_is_what_parsing_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red: what one way of parsing gives in place of another's; comments or order lost."""
    text = "b: 1  # why\na: {c: null}\n"
    with monkeypatch.context() as patch:
        for module in ("dvc.utils.strictyaml.parse_yaml", "dvc.utils.serialize._yaml.parse_yaml"):
            patch.setattr(module, _yaml.parse_yaml)  # so that both come back
        _parse_once(tmp_path)
        plain, whole = (_yaml.parse_yaml(text, "a", typ) for typ in ("safe", "rt"))
        again = [_yaml.parse_yaml(text, "a", typ) for typ in ("safe", "rt")]
        assert len(list(tmp_path.iterdir())) == 2
    assert again[0] == plain == _yaml.parse_yaml(text, "a")
    assert type(again[0]) is dict
    texts = [io.StringIO(), io.StringIO()]
    for tree, file in zip((whole, again[1]), texts, strict=True):
        _yaml._dump(tree, file)
    assert texts[1].getvalue() == texts[0].getvalue()
    assert "# why" in texts[1].getvalue()


@pytest.mark.parametrize("group", [False, True])
def test_a_kill_leaves_what_it_would_leave(group: bool, seed: None) -> None:
    """Each is its asker's child; a kill of the first alone leaves the others, of its group nobody.

    Red: a child of the seed's; a group that is not the asker's."""
    with subprocess.Popen(
        python(CHAIN, CHAIN, CHAIN), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        known = [tuple(map(int, process.stdout.readline().split())) for _ in range(3)]
        assert [parent for _, parent in known] == [os.getpid(), known[0][0], known[1][0]]
        assert known[0][0] == process.pid
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
            time.sleep(0.1)
            for pid, _ in known[1:]:
                os.kill(pid, signal.SIGKILL)
        assert process.stdout.read() == ""
        assert process.wait() == -signal.SIGKILL
