"""Serve the report on 127.0.0.1 with the progress of the runs (`ncpipe serve`), updated with the results.

`ncpipe.commands.report` writes the same page to a file.
"""

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
from ncpipe.commands.status import FINISHED, Progress, count_states, sweep_progress
from ncpipe.config.params import PARAMS_FILE, load_params
from ncpipe.datasets.stored import data_checksum
from ncpipe.report.chart_data import curve_data
from ncpipe.report.page import Contents, render
from ncpipe.runs.fingerprint import RUN_RECORD, fingerprint_of
from ncpipe.runs.store import stored
from ncpipe.system.artifacts import CLAIMS, FIGURES, PREPARED, RESULTS, RUNS, read_json
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.convergence import failure_lines, judge_runs

HOST = "127.0.0.1"
LOGS_PATH = "/logs/"
SOURCES = (RESULTS, FIGURES, CLAIMS)
IDLE_SECONDS = 30.0  # after which a connection without a request is closed: each holds a thread
RENDER_SECONDS = 30.0  # between two pages without results: each takes a second or two


class Live:
    """Holds the page, which is rendered again when its sources change, and answers with the runs' state."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rendered: tuple[str, str] = ("", "")  # version and page
        self.finished: tuple[float, list[str]] = (-RENDER_SECONDS, [])  # time, and runs finished by then

    def page(self) -> str:
        """Return the page."""
        with self.lock:
            progress = sweep_progress()
            version = self.version(progress)
            if self.rendered[0] != version:
                self.rendered = version, render(dataclasses.replace(_contents(progress), live=True))
            return self.rendered[1]

    def version(self, progress: Progress) -> str:
        """Return a text that changes with the results, and within RENDER_SECONDS of the end of a run."""
        checked, names = self.finished
        if time.monotonic() - checked >= RENDER_SECONDS:
            names = [run.name for run, state in progress.states.items() if state in FINISHED]
            self.finished = time.monotonic(), names
        return repr([names, *((path.stat().st_mtime_ns, path.stat().st_size) for path in _files())])

    def state(self) -> bytes:
        """Return the state of the runs as JSON."""
        progress = sweep_progress()
        columns, rows = count_states(progress)
        state = {
            "version": self.version(progress),
            "columns": columns,
            "rows": rows,
            "lines": [*progress.training, progress.summary()],
            "logs": [[run.name, f"{LOGS_PATH}{log.name}"] for run, log in progress.failures().items()],
        }
        return json.dumps(state).encode()

    def log(self, name: str) -> bytes | None:
        """Return the log of a run that failed; None for any other name."""
        logs = {log.name: log for log in sweep_progress().failures().values()}
        return logs[name].read_bytes() if name in logs else None


def _files() -> Iterator[Path]:
    """Yield the files that the page is made of."""
    yield PARAMS_FILE
    for folder in SOURCES:
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


def _contents(progress: Progress) -> Contents:
    """Return the report; without results, the training curves of the finished runs."""
    try:
        return contents()
    except InputError as error:
        lead = [f"No results yet ({error}). They appear when all runs of the sweep are trained and measured."]
        empty = Contents("Neural collapse", lead)
    finished = {run: state for run, state in progress.states.items() if state in FINISHED}
    if not finished:
        return empty
    from ncpipe.runs.run_folder import read_history  # loads PyTorch

    params = load_params()
    runs, history = [], []
    for run, state in finished.items():
        folder = RUNS / run.path
        if state == "trained":
            folder = stored(fingerprint_of(run, data_checksum(PREPARED / run.data), params.compute).key())
        try:
            reached_end = bool(read_json(folder / RUN_RECORD)["outcome"]["finished"])
            history += [run.columns | row for row in read_history(folder)]
        except (InputError, KeyError):  # moved by its stage just now, or damaged: the stage reports that
            continue
        runs.append(run.columns | {"finished": reached_end, "gradient_norm": math.nan})
    if not history:
        return empty
    rule = dataclasses.replace(params.convergence, gradient=None)  # gradients are measured later
    judged = judge_runs(pd.DataFrame(runs), pd.DataFrame(history), rule)
    return dataclasses.replace(
        empty,
        lead=[*lead, f"{len(runs)} of {len(progress.states)} runs are trained; these are their curves."],
        charts=curve_data(judged, pd.DataFrame(history)),
        failures=failure_lines(judged, rule),
    )


def make_server(port: int) -> ThreadingHTTPServer:
    """Return a server for this machine only, which refuses requests for another host."""
    live = Live()

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self.answer(live.page().encode(), "text/html; charset=utf-8")
            elif self.path == "/state.json":
                self.answer(live.state(), "application/json")
            elif (
                self.path.startswith(LOGS_PATH)
                and (log := live.log(self.path.removeprefix(LOGS_PATH))) is not None
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
            """Print nothing."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise InputError(f"serve: port {port}: {error.strerror}; choose another with --port") from None


def serve(port: int) -> None:
    """Serve the page until Ctrl-C."""
    sweep_progress()  # raises InputError for mistakes in params.yaml
    with make_server(port) as server:
        say(f"serve: http://{HOST}:{server.server_address[1]}/ (Ctrl-C to stop)")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            server.shutdown()
