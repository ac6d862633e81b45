"""`ncpipe report --live`: the page on 127.0.0.1, with where the runs are; made anew as results are."""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd

from ncpipe.commands.report import contents
from ncpipe.commands.status import ENDED, Seen, counted, look
from ncpipe.config.params import PARAMS_FILE, load_params
from ncpipe.datasets.stored import data_checksum
from ncpipe.report.chart_data import curve_data
from ncpipe.report.page import NOTHING, Contents, render
from ncpipe.runs.fingerprint import RUN_RECORD, RunFingerprint
from ncpipe.runs.store import stored
from ncpipe.system.artifacts import CLAIMS, FIGURES, PREPARED, RESULTS, RUNS, read_json
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.convergence import failure_lines, judge_runs

HOST = "127.0.0.1"
LOGS_AT = "/logs/"
READ = (RESULTS, FIGURES, CLAIMS)
SILENCE = 30.0  # seconds after which a connection that says nothing is closed: each holds a thread
RENEWED = 30.0  # seconds between two pages of runs that have ended: each takes a second or two


class Live:
    """What is served: a page, made anew when what it is made of has changed, and the state of the runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: tuple[str, str] = ("", "")  # of which version, and the page
        self.ended: tuple[float, list[str]] = (-RENEWED, [])  # when looked at, and the runs that had ended

    def page(self) -> str:
        with self.lock:
            seen = look()
            version = self.version(seen)
            if self.made[0] != version:
                self.made = version, render(dataclasses.replace(_contents(seen), live=True))
            return self.made[1]

    def version(self, seen: Seen) -> str:
        """Return a text that changes when a result has changed, and some time after a run has ended."""
        at, names = self.ended
        if time.monotonic() - at >= RENEWED:
            names = [run.name for run, state in seen.states.items() if state in ENDED]
            self.ended = time.monotonic(), names
        return repr([names, *((path.stat().st_mtime_ns, path.stat().st_size) for path in _files())])

    def state(self) -> bytes:
        """Return the state of the runs, as JSON."""
        seen = look()
        columns, rows = counted(seen)
        told = {
            "version": self.version(seen),
            "columns": columns,
            "rows": rows,
            "lines": [*seen.training, seen.summary()],
            "logs": [[run.name, f"{LOGS_AT}{log.name}"] for run, log in seen.failures().items()],
        }
        return json.dumps(told).encode()

    def log(self, name: str) -> bytes | None:
        """Return the log of a run that failed; None for any other name."""
        logs = {log.name: log for log in look().failures().values()}
        return logs[name].read_bytes() if name in logs else None


def _files() -> Iterator[Path]:
    yield PARAMS_FILE
    for folder in READ:
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


def _contents(seen: Seen) -> Contents:
    """Return the page of the results; of a sweep without results, how the runs that have ended trained."""
    try:
        return contents()
    except InputError as error:
        lead = [f"No results yet ({error}): they come when all runs of the sweep are trained and measured."]
        nothing = dataclasses.replace(NOTHING, title="Neural collapse", lead=lead)
    ended = {run: state for run, state in seen.states.items() if state in ENDED}
    if not ended:
        return nothing
    from ncpipe.runs.run_folder import read_history  # which loads PyTorch

    params = load_params()
    runs, history = [], []
    for run, state in ended.items():
        folder = RUNS / run.path
        if state == "trained":
            folder = stored(RunFingerprint(run, data_checksum(PREPARED / run.data), params.compute).key())
        try:
            finished = bool(read_json(folder / RUN_RECORD)["outcome"]["finished"])
            history += [run.columns | row for row in read_history(folder)]
        except (InputError, KeyError):  # taken by its stage a moment ago, or damaged: the stage will say so
            continue
        runs.append(run.columns | {"finished": finished, "gradient_norm": math.nan})
    if not history:
        return nothing
    rule = dataclasses.replace(params.convergence, gradient=None)  # which is measured later
    judged = judge_runs(pd.DataFrame(runs), pd.DataFrame(history), rule)
    return dataclasses.replace(
        nothing,
        lead=[*lead, f"{len(runs)} of {len(seen.states)} runs are trained, and this is how."],
        charts=curve_data(judged, pd.DataFrame(history)),
        failures=failure_lines(judged, rule),
    )


def make_server(port: int) -> ThreadingHTTPServer:
    """Return a server for this machine alone, which refuses requests that name another host."""
    live = Live()

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENCE

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self.answer(live.page().encode(), "text/html; charset=utf-8")
            elif self.path == "/state.json":
                self.answer(live.state(), "application/json")
            elif (
                self.path.startswith(LOGS_AT)
                and (log := live.log(self.path.removeprefix(LOGS_AT))) is not None
            ):
                self.answer(log, "text/plain; charset=utf-8")
            else:
                self.send_error(404)

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing: the terminal is the user's."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise InputError(f"report: port {port}: {error.strerror}; name another by --port") from None


def serve(port: int) -> None:
    """Serve the page until Ctrl-C."""
    look()  # what is wrong with params.yaml is said here, not on the page
    with make_server(port) as server:
        say(f"report: http://{HOST}:{server.server_address[1]}/ until Ctrl-C")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            server.shutdown()
