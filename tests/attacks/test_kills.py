"""SIGKILL, SIGTERM and SIGINT at random moments, again and again, until the command comes to its end.

It ends with the bytes of one that was left alone, and trains no run twice that was finished when it was hit.
`dvc repro`, `ncpipe sweep` and `dvc exp run --temp` are stopped, 200 times in all (NCPIPE_ATTACK_KILLS), the
process alone and its whole group by turns.
"""

import itertools
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pipeline import ROOT, TIMEOUT, Clone, Output
from small_sweep import OUTPUTS, TORN, finished, mend, prepared, put_back

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills process groups")
KILLS = int(os.environ.get("NCPIPE_ATTACK_KILLS", "200"))
COMMANDS = {
    "dvc repro": ["dvc", "repro"],
    "ncpipe sweep": ["ncpipe", "sweep"],
    "dvc exp run": ["dvc", "exp", "run", "--temp"],
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SHARES = ("dvc repro",) * 4 + ("ncpipe sweep",) * 4 + ("dvc exp run",)  # of the kills


def phase(said: str, clone: Clone) -> str:
    """What a command was at, from what it had said and left."""
    stages = re.findall(r"^Running stage '([^'@]+)", said, re.MULTILINE)
    last = said.splitlines()[-1] if said.strip() else ""
    if stages and stages[-1] not in ("train", "grid", "fetch", "code"):
        return f"{stages[-1]}"
    if last.startswith("train ") and " on cpu" in last:
        return "training"
    if last.startswith("  alpha L="):
        return "writing"
    if "taken from the store" in last:
        return "DVC, after training"
    return "start-up"


def call(
    clone: Clone,
    command: list[str],
    after: float | None = None,
    number: int = signal.SIGKILL,
    group: bool = False,
) -> tuple[Output, float, bool]:
    """Run a command; send it a signal, alone or with all that it started, after so many seconds.

    Also returns for how long it ran, and whether the signal was sent.
    """
    start = time.monotonic()
    process = clone.start(*command)
    assert process.stdout is not None
    sent = threading.Event()

    def kill() -> None:
        sent.set()
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)

    timer = threading.Timer(after or TIMEOUT, kill)
    timer.start()
    said = process.stdout.read()  # to its end: also what a stage says that has lost its DVC
    code = process.wait()
    timer.cancel()
    process.stdout.close()
    seconds = time.monotonic() - start
    return Output(code, said, said), seconds, sent.is_set()


@pytest.mark.attack
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout")
def test_hundreds_of_kills(tmp_path: Path) -> None:
    """Red: whatever makes a finished run train again, or bytes depend on where one was stopped."""
    begin = time.monotonic()
    clone = prepared(tmp_path / "work")
    fresh = clone.copy(tmp_path / "fresh" / "clone")
    tried: list[str] = []
    takes = {}
    for name in reversed(COMMANDS):
        put_back(clone, fresh)
        output, takes[name], _ = call(clone, COMMANDS[name])
        assert output.code == 0, output.out
    whole = clone.digests(*OUTPUTS)
    for name in itertools.cycle(SHARES):
        if kills_of(tried) >= KILLS:
            break
        put_back(clone, fresh)
        wrong = kill_until_it_ends(clone, name, takes, tried)
        if name == "dvc exp run" and not wrong:  # whose runs are stored: the workspace trains none
            clone.repro()
        if not wrong and clone.digests(*OUTPUTS) != whole:
            wrong = "other bytes"
        tried.append(f"end of {name}{f': WRONG, {wrong.splitlines()[0]}' if wrong else ''}")
        print(tried[-1], wrong, flush=True)
    counts = Counter(tried)
    print(f"\n{kills_of(tried)} kills", *(f"  {n:5} {what}" for what, n in sorted(counts.items())), sep="\n")
    print(f"  {time.monotonic() - begin:.0f} s", flush=True)
    assert not [line for line in tried if "WRONG" in line]


def kills_of(tried: list[str]) -> int:
    return sum(line.startswith("SIG") for line in tried)


def kill_until_it_ends(clone: Clone, name: str, takes: dict[str, float], tried: list[str]) -> str:
    """The command again and again, each time a little longer, so that it comes to its end whatever happens.

    takes: seconds of each command, left alone; of this one as it is now, if nothing hits it. What went wrong,
    or nothing.
    """
    said, mended = "", False  # since the last kill
    for attempt in itertools.count():
        done, kills = finished(clone.folder, said), kills_of(tried)
        chance = random.Random(len(tried))  # another one after an end than before it
        seconds = chance.uniform(0.02, 1.0 + attempt / 4) * takes[name] if kills < KILLS else None
        number = SIGNALS[kills % len(SIGNALS)]
        output, takes_now, sent = call(clone, COMMANDS[name], seconds, number, group=bool(kills % 2))
        said += output.out
        if done & set(output.trained):
            return f"trained again\n{said}"
        if output.code == 0:
            if attempt == 0:
                takes[name] = takes_now
            return ""
        if sent:
            tried.append(f"{number.name} of {name}: {phase(output.out, clone)}")
            mended = False
        elif not mended and (torn := re.search(TORN, output.out)):
            tried.append(f"torn: {torn.group()}")
            mended = True
            mend(clone)
            continue
        else:
            return f"did not go on\n{said}"
    raise AssertionError
