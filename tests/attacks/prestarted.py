"""Python programs that start in hundredths of a second: forks of a process that has imported what they need.

A small sweep starts Python twenty times, with DVC, PyTorch and pandas, which is most of what it costs. Here a
*seed* has imported other people's packages, and of ncpipe's at most what one checkout holds, which is seen by
programs that would import it from there and by no other. It waits. Where a process would start a
program, its seed forks; the fork takes the working directory, environment, arguments and standard files that
the program was to have, plants a seed of its own before anything else, and runs the program. The seed forks
twice, and an orphan falls to the nearest ancestor that asks for such (PR_SET_CHILD_SUBREAPER), which is the
one that wanted a program: so it is its real child, and signals, groups, exit codes and what follows when a
parent dies are the kernel's business, as ever.

What differs from a real start: strings have the seed's hashes, processes bear its name, and what packages
read from the environment while they are imported is what the seed was given. A seed has one thread, or does
not begin to serve: what other threads hold does not survive a fork.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import pickle
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

IMPORTS = (
    "configobj", "dulwich.ignore", "dulwich.index", "dulwich.worktree", "dvc._debug", "dvc.analytics",
    "dvc.cachemgr", "dvc.cli.parser", "dvc.data_cloud", "dvc.dirs", "dvc.lock", "dvc.repo.artifacts",
    "dvc.repo.commit", "dvc.repo.datasets", "dvc.repo.graph", "dvc.repo.index", "dvc.repo.metrics",
    "dvc.repo.open_repo", "dvc.repo.params", "dvc.repo.plots", "dvc.repo.reproduce", "dvc.repo.stage",
    "dvc.repo.status", "dvc.repo.trie", "dvc.rwlock", "dvc.utils.strictyaml", "dvc_data.hashfile._progress",
    "dvc_data.hashfile.db.local", "dvc_data.hashfile.status", "dvc_render", "encodings.utf_8_sig",
    "filelock", "flatten_dict", "fsspec.implementations.memory", "networkx", "pandas",
    "pandas.core.reshape.reshape", "pandas.io.formats.csvs", "platformdirs.unix", "psutil",
    "pydantic.plugin._loader", "pydantic.type_adapter", "pyparsing", "rich.text", "ruamel.yaml",
    "ruamel.yaml.mergevalue", "safetensors.torch", "scipy.optimize", "scipy.stats", "scmrepo.git",
    "scmrepo.noscm", "tomllib", "torch", "torch.utils._device", "typer._adapters",
    "typer._click.decorators", "yaml",
)  # fmt: skip
STAGES = ("aggregate", "code", "extract", "fetch", "grid", "measure", "train")  # start no program
OWN = ("ncpipe.cli", "ncpipe.commands.sweep", "ncpipe.scheduling.batches", "ncpipe.scheduling.dvc_params")
OWN += tuple(f"ncpipe.commands.{stage}" for stage in STAGES)
PLANT = (
    "import sys; sys.path.insert(0, {!r}); import prestarted; del sys.path[0];"
    "prestarted.plant({}, {}, {!r}, {}, {!r})"
)
REQUEST = 1 << 17  # bytes at most
SHELLS = ("sh", "bash", "dash", "zsh")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, of Linux
STOPS = (signal.SIGINT, signal.SIGTERM)

_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_execve, _execvp = os.execve, os.execvp
_seed: socket.socket | None = None  # of this process
_children: set[int] = set()  # that this process started
_base: list[str] = []  # sys.path, of a program that adds nothing to it
_own: dict[str, ModuleType] = {}  # of ncpipe, imported from _checkout
_checkout: str | None = None


@contextlib.contextmanager
def prestarted(
    environment: Mapping[str, str],
    imports: Sequence[str] = IMPORTS,
    checkout: Path | None = None,
    own: Sequence[str] = OWN,
    parsed: Path | None = None,
) -> Iterator[None]:
    """Within the block `subprocess` starts Python programs from a seed, here and in what it starts.

    environment: what the packages see that the seed imports. checkout: of whose ncpipe it imports `own` too;
    the code there must not change. parsed: a folder for what DVC has parsed, which parses a text once then.
    """
    global _seed
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = PLANT.format(
        str(Path(__file__).parent),
        theirs.fileno(),
        tuple(imports),
        str(checkout or ""),
        tuple(own),
        str(parsed or ""),
    )
    command = [sys.executable, "-P", "-c", source]
    original = subprocess.Popen
    with original(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as process:
        _children.add(process.pid)
        theirs.close()
        try:
            assert ours.recv(8) == b"ready", "no seed"
            _adopt(True)
            _seed, subprocess.Popen = ours, Popen  # type: ignore[misc]
            yield
        finally:
            _seed, subprocess.Popen = None, original  # type: ignore[misc]
            _adopt(False)
            ours.close()  # at which the seed ends


def _adopt(orphans: bool) -> None:
    """Whether what this process's descendants leave behind becomes its own."""
    ctypes.CDLL(None).prctl(SUBREAPER, int(orphans), 0, 0, 0)


def bury_orphans(seconds: float = 5.0) -> None:
    """Wait for what this process has adopted, as the system's first process does.

    Until somebody has, DVC takes the dead for alive. What was forked without `subprocess` counts too.
    """
    import psutil

    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        orphans = [child.pid for child in psutil.Process().children() if child.pid not in _children]
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


# Who asks for a program


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Has the seed start what is Python, and starts all else as ever."""

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(_execute).bind(self, *arguments).arguments
        command = given["args"]
        words = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
        environment = os.environ if given["env"] is None else given["env"]
        special = any(given[name] for name in ("shell", "preexec_fn", "pass_fds", "executable"))
        programs = None if special else python_programs(words, environment.get("PATH"))
        if programs is None or _seed is None:
            _execute(self, *arguments)
        else:
            files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
            request = {
                "programs": programs,
                "folder": os.path.abspath(os.fsdecode(given["cwd"] or ".")),
                "environment": {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()},
                "session": bool(given["start_new_session"]),
                "ignored": [sign for sign in STOPS if signal.getsignal(sign) is signal.SIG_IGN],
            }
            files = [number if file == -1 else file for number, file in enumerate(files)]
            socket.send_fds(_seed, [json.dumps(request).encode()], files)
            answer = _seed.recv(32)
            assert answer.isdigit(), f"the seed has not started {words}"
            self.pid = int(answer)
            self._child_created = True
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[end] for end in ends))  # type: ignore[attr-defined]
        _children.add(self.pid)


def python_programs(words: Sequence[Any], path: str | None) -> list[list[str]] | None:
    """The programs in this Python that a command is, joined by && in a shell; None if it is anything else."""
    words = list(map(os.fsdecode, words))
    if Path(words[0]).name in SHELLS and len(words) > 2 and words[-2] == "-c":
        lexer = shlex.shlex(words[-1], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found: list[list[str]] = [[]]
        for word in lexer:
            if word == "&&":
                found.append([])
            else:
                found[-1].append(word)
        alone = [python_programs(some, path) if some else None for some in found]
        return None if None in alone else [program for some in alone for program in some or ()]
    if words[0] == sys.executable:
        return [words] if {"-m", "-c"} & set(words[1:3]) else None
    program = shutil.which(words[0], path=path)
    if program is None:
        return None
    with open(program, "rb") as file:
        ours = file.readline().rstrip() == b"#!" + os.fsencode(sys.executable)
    return [[program, *words[1:]]] if ours else None


# The seed


def plant(number: int, imports: Sequence[str], checkout: str, own: Sequence[str], parsed: str) -> NoReturn:
    """Become a seed that hears on the socket of this number."""
    global _checkout
    for name in imports:
        importlib.import_module(name)
    assert not _ours()
    if parsed:
        _parse_once(Path(parsed))
    if checkout:
        sys.path.insert(0, checkout)
        for name in own:
            importlib.import_module(name)
        del sys.path[0]
        _checkout = checkout
        if "ncpipe.stamps" in sys.modules:
            _look_at_code(Path(checkout))
        _own.update({name: sys.modules.pop(name) for name in _ours()})
    assert len(os.listdir("/proc/self/task")) == 1, "a seed has one thread"
    gc.collect()
    gc.freeze()
    _base[:] = sys.path
    for sign in STOPS:
        signal.signal(sign, signal.SIG_IGN)
    channel = socket.socket(fileno=number)
    channel.send(b"ready")
    while True:
        request, files = _wait_as_seed(channel)
        channel = _become(request, files)


def _look_at_code(checkout: Path) -> None:
    """Have ncpipe make its schemas and take its code's digests once, which it keeps until a file may have
    changed: none does here."""
    code, params, stamps = (sys.modules[f"ncpipe.{name}"] for name in ("code", "params", "stamps"))
    for name in _ours():
        if getattr(sys.modules[name], "forget", None) is code.forget and name != "ncpipe.code":
            sys.modules[name].forget = lambda: None  # type: ignore[attr-defined]
    for spec in params.load_params(checkout / "params.yaml").experiments.values():
        code.training_digests(stamps.choices_of(spec))


def _parse_once(folder: Path) -> None:
    """Have DVC keep what a YAML text says in a file named by its digest: two thirds of its time it parses."""
    from dvc.utils import strictyaml
    from dvc.utils.serialize import _yaml

    parse = _yaml.parse_yaml

    def parse_once(text: str, path: Any, typ: str = "safe") -> Any:
        known = folder / hashlib.sha256(f"{typ}\0{text}".encode()).hexdigest()
        try:
            return pickle.loads(known.read_bytes())
        except FileNotFoundError:
            found = parse(text, path, typ)
            partial = known.with_suffix(f".{os.getpid()}")
            partial.write_bytes(pickle.dumps(found))
            partial.rename(known)
            return found

    _yaml.parse_yaml = strictyaml.parse_yaml = parse_once


def _wait_as_seed(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns in the forks: what is asked for, and its standard files."""
    while True:
        data, files, _, _ = socket.recv_fds(channel, REQUEST, 3)
        if not data:  # whom it serves has ended
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            request = json.loads(data)
            if request["session"]:
                _new_session()
            while os.getppid() == between:  # until it is a child of whom the seed serves
                time.sleep(0.0002)
            os.write(write, b"%d" % os.getpid())
            for number in (read, write):
                os.close(number)
            channel.close()
            return request, files
        os.close(write)  # so that a fork that fails before it has said who it is, is heard
        os.waitpid(between, 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.send(os.read(read, 32) or b"failed")
        for number in (read, *files):
            os.close(number)


def _new_session() -> None:
    """A session as polite as the present one, where that may be said: Linux keeps it for each by itself."""
    own, niceness = Path("/proc/self/autogroup"), "0"
    with contextlib.suppress(OSError, IndexError):
        niceness = own.read_text().split()[-1]
    os.setsid()
    if niceness != "0":
        with contextlib.suppress(OSError):  # for some it is not theirs to say
            own.write_text(niceness)


def _become(request: dict[str, Any], files: list[int]) -> socket.socket:
    """Run the programs. Returns in the seed that is planted first: its socket.

    Stages have none: if one starts a program all the same, that starts as ever.
    """
    global _seed
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    [first, *more] = request["programs"]
    stage = not more and Path(first[0]).name == "ncpipe" and first[1:2] and first[1] in STAGES
    if stage or os.fork():
        theirs.close()
        if stage:
            ours.close()
        else:
            _adopt(True)
            _seed, subprocess.Popen = ours, Popen  # type: ignore[misc]
        os.chdir(request["folder"])
        for sign in STOPS:
            signal.signal(sign, signal.SIG_IGN if sign in request["ignored"] else signal.SIG_DFL)
        os.execve, os.execvp = _exec, functools.partial(_exec, environment=None)
        _set_environment(request["environment"])
        _run(request["programs"], customize=True)
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # who reads to the end of a pipe waits for the program, not for its seed
        os.dup2(nothing, number)
    os.close(nothing)
    return theirs


# A program


def _exec(file: str, arguments: Sequence[str], environment: Mapping[str, str] | None) -> NoReturn:
    """In place of os.execve and os.execvp."""
    programs = python_programs(arguments, (environment or os.environ).get("PATH"))
    if programs is None and environment is None:
        _execvp(file, arguments)
    elif programs is None:
        _execve(file, arguments, environment)
    if environment is not None:
        _set_environment(environment)
    for name in _ours():
        del sys.modules[name]
    _run(programs or [], customize=False)


def _set_environment(environment: Mapping[str, str]) -> None:
    environment = dict(environment)
    os.environ.clear()
    os.environ.update(environment)


def _run(programs: list[list[str]], customize: bool) -> NoReturn:
    """What a shell and Python do with them; `customize` once in a process: hooks stay."""
    *first, last = programs
    for program in first:
        if code := subprocess.run(program, check=False).returncode:
            _end(code if code > 0 else 128 - code)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:] = [*paths, *_base]
    if customize and any((Path(path) / "sitecustomize.py").exists() for path in paths):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    try:
        _run_python(last)
        _end(0)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            _end(stop.code or 0)
        print(stop.code, file=sys.stderr)
        _end(1)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    except BaseException:
        traceback.print_exc()
        _end(1)


def _ours() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "ncpipe"]


def _take_own() -> None:
    """Have what the seed has imported of ncpipe, if this program would import ncpipe from the same place."""
    found = next((path for path in sys.path if os.path.isdir(os.path.join(path, "ncpipe"))), None)
    if found is not None and found == _checkout:
        sys.modules.update(_own)


def _run_python(program: list[str]) -> None:
    if program[0] != sys.executable:
        sys.argv, sys.path[:0] = program, [str(Path(program[0]).parent)]
        _take_own()
        runpy.run_path(program[0], run_name="__main__")
        return
    words = program[1:]
    if words[0] == "-P":
        words = words[1:]
    else:
        sys.path[:0] = [os.getcwd() if words[0] == "-m" else ""]
    _take_own()
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)


def _end(code: int) -> NoReturn:
    """As Python ends, but for taking its memory apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 255)
