"""`ncpipe report --live`: the page on 127.0.0.1, with where the runs are; made anew as results are."""

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ncpipe.artifacts import CLAIMS, FIGURES, RESULTS
from ncpipe.commands.report import contents
from ncpipe.commands.status import counted, look
from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.params import PARAMS_FILE
from ncpipe.report.page import NOTHING, Contents, render

HOST = "127.0.0.1"
LOGS_AT = "/logs/"
READ = (RESULTS, FIGURES, CLAIMS)


class Live:
    """What is served: a page, made anew when what it is made of has changed, and the state of the runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: tuple[str, str] = ("", "")  # of which version, and the page

    def page(self) -> str:
        with self.lock:
            version = self.version()
            if self.made[0] != version:
                self.made = version, render(dataclasses.replace(_contents(), live=True))
            return self.made[1]

    def version(self) -> str:
        """Another one when a result has changed."""
        return repr([(path.stat().st_mtime_ns, path.stat().st_size) for path in _files()])

    def state(self) -> bytes:
        """Where the runs are, as JSON."""
        seen = look()
        columns, rows = counted(seen)
        told = {
            "version": self.version(),
            "columns": columns,
            "rows": rows,
            "lines": [*seen.training, seen.summary()],
            "logs": [[run.name, f"{LOGS_AT}{log.name}"] for run, log in seen.failures().items()],
        }
        return json.dumps(told).encode()

    def log(self, name: str) -> bytes | None:
        """A log of a run that failed, and nothing else that a name may lead to."""
        logs = {log.name: log for log in look().failures().values()}
        return logs[name].read_bytes() if name in logs else None


def _files() -> Iterator[Path]:
    yield PARAMS_FILE
    for folder in READ:
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


def _contents() -> Contents:
    """The page of what is there; of a sweep without results only its title."""
    try:
        return contents()
    except InputError as error:
        lead = [f"No results yet ({error}): they come when all runs of the sweep are trained and measured."]
        return dataclasses.replace(NOTHING, title="Neural collapse", lead=lead)


def make_server(port: int) -> ThreadingHTTPServer:
    """Answers on this machine alone, and only who names it as such: no page of others' can ask for it."""
    live = Live()

    class Handler(BaseHTTPRequestHandler):
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
            """Nothing: the terminal is the user's."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise InputError(f"report: port {port}: {error.strerror}; name another by --port") from None


def serve(port: int) -> None:
    """Until Ctrl-C."""
    look()  # what is wrong with params.yaml is said here, not on the page
    with make_server(port) as server:
        say(f"report: http://{HOST}:{server.server_address[1]}/ until Ctrl-C")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            server.shutdown()
