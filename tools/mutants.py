"""How many single faults in the code turn its tests red: `python tools/mutants.py --help`.

A mutant is a copy of the package with one place changed: an operator, a comparison, a constant, a call's
arguments, a statement left out. It is killed when one of the tests nearest to its module fails; those that
survive are listed, and each is either a test that is missing or a change that alters nothing.

The faults of `named_faults.py`, which once survived, must all be killed, and still be there to put in.
"""

import argparse
import ast
import difflib
import itertools
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from named_faults import NAMED

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("models", "training", "metrics", "tables", "theory", "features", "runs/fingerprint.py")
CPU_SECONDS = 600  # of one mutant's tests; more is an endless loop

# Left out: the first is slow and has no fault of its own to see; the second waits for ever in a fork.
LEFT_OUT = ("test_pipeline", "test_slurm")

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "add_": "sub_", "sub_": "add_"}


@dataclass(frozen=True)
class Place:
    """Where a mutant is: the node of a module's tree, in ast.walk's order, and which change of it."""

    module: Path
    node: int
    change: int


@dataclass(frozen=True)
class Mutant:
    """A module's source with one place changed. where: `training/session.py:120`; what: the changed line."""

    module: Path
    where: str
    what: str
    source: str


def places_in(module: Path) -> list[Place]:
    """Where a module below ncpipe/ may be changed."""
    nodes = enumerate(ast.walk(_tree(module)))
    kept = [(index, node) for index, node in nodes if not _is_decoration(node)]
    return [Place(module, index, change) for index, node in kept for change in range(_changes(node))]


def mutant_at(place: Place) -> Mutant | None:
    """The mutant; None where the change leaves the code as it is."""
    tree = _tree(place.module)
    plain = ast.unparse(tree)
    node = list(ast.walk(tree))[place.node]
    where = f"{place.module}:{getattr(node, 'lineno', 0)}"
    _change(node, place.change)
    source = ast.unparse(ast.fix_missing_locations(tree))
    return None if source == plain else Mutant(place.module, where, _diff(plain, source), source)


def _tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / "ncpipe" / module).read_text(encoding="utf-8"))


def _changes(node: ast.AST) -> int:
    """In how many ways `_change` changes this node."""
    if isinstance(node, ast.Compare):
        return sum(type(operator) in COMPARISONS for operator in node.ops[:1])
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return int(type(node.op) in OPERATORS)
    if isinstance(node, ast.BoolOp | ast.IfExp):
        return 1
    if isinstance(node, ast.UnaryOp):
        return int(isinstance(node.op, ast.Not | ast.USub | ast.Invert))
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, bool | int | float))
    if isinstance(node, ast.Call):
        return len(node.keywords) + int(len(node.args) > 1) + int(_name(node) in NAMES)
    if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.With | ast.While):
        return len(node.body)
    return 0


def _change(node: ast.AST, change: int) -> None:
    """Put change number `change` into the node."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if not isinstance(node.op, ast.Not) else node.op
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = (
            not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value
        )
    elif isinstance(node, ast.Call):
        _change_call(node, change)
    elif isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.With | ast.While):
        statement = node.body[change]
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.If | ast.Raise) and not text:
            node.body[change] = ast.Pass()


def _change_call(node: ast.Call, change: int) -> None:
    """Leave out a keyword, exchange the first two arguments, or call the opposite function."""
    if change < len(node.keywords):
        del node.keywords[change]
    elif change == len(node.keywords) and len(node.args) > 1:
        node.args[0], node.args[1] = node.args[1], node.args[0]
    elif isinstance(node.func, ast.Name):
        node.func.id = NAMES[node.func.id]
    elif isinstance(node.func, ast.Attribute):
        node.func.attr = NAMES[node.func.attr]


def _name(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _is_decoration(node: ast.AST) -> bool:
    """Messages and annotations decide no number."""
    return isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.AnnAssign | ast.Assert)


def _diff(before: str, after: str) -> str:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return " -> ".join(line[2:].strip() for line in lines if line[0] in "-+")


def nearest_tests(module: Path) -> list[str]:
    """Test files of a module: those named after it or its room, then those that import it.

    Where no test imports it, those that import others of its room. Metrics have the conformance suite too.
    """
    room = module.parts[0].removesuffix(".py")
    dotted = "ncpipe." + ".".join(module.with_suffix("").parts)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    texts = {name: text for name, text in sorted(texts.items()) if name not in LEFT_OUT}
    named = [name for name in (f"test_{module.stem}", f"test_{room}") if name in texts]
    own = [name for name, text in texts.items() if re.search(rf"{re.escape(dotted)}\b", text)]
    near = [name for name, text in texts.items() if f"ncpipe.{room}" in text]
    exact = ["tests/conformance/test_conformance.py::test_ncpipe_conforms"] if room == "metrics" else []
    return [*(f"tests/{name}.py" for name in dict.fromkeys([*named, *(own or near)])), *exact]


class Tree:
    """A copy of the repository into which mutants are put, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in names.splitlines():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)  # a study may link to the package

    def kills(self, module: Path, source: str, tests: Sequence[str]) -> str:
        """What became of this source of a module: `killed`, `endless` or `survived`."""
        path = self.folder / "ncpipe" / module
        before = path.read_text(encoding="utf-8")
        path.write_text(source, encoding="utf-8")
        try:
            return self._run(tests)
        finally:
            path.write_text(before, encoding="utf-8")

    def must_pass(self, tests: Sequence[str]) -> None:
        """Each file on its own: all of them would take longer than one mutant's may."""
        if failing := [name for name in tests if self._run([name]) != "survived"]:
            raise SystemExit(f"these fail without any fault, mend them first: {' '.join(failing)}")

    def _run(self, tests: Sequence[str]) -> str:
        child = os.fork()
        if child == 0:
            self._run_tests(tests)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM):
            return "endless"
        return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"

    def _run_tests(self, tests: Sequence[str]) -> None:
        """In a process of its own, which has torch already and ncpipe not yet."""
        code = 2
        try:
            os.chdir(self.folder)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            signal.alarm(10 * CPU_SECONDS)
            os.environ["PYTHONPATH"] = str(self.folder)
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True
            sys.path[:0] = [str(self.folder), str(self.folder / "tests")]
            if not os.environ.get("MUTANTS_OUTPUT"):
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os.dup2(silence, 2)
            import pytest

            options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not pipeline and not real_data"]
            code = int(pytest.main([*options, *tests], plugins=[_SameExamples()]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


class _SameExamples:
    """hypothesis draws the same in every run and keeps nothing."""

    def pytest_configure(self) -> None:
        import hypothesis  # only now: pytest rewrites its asserts

        hypothesis.settings.register_profile("mutants", database=None, derandomize=True)
        hypothesis.settings.load_profile("mutants")


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, killed / tried
    middle = (share + z * z / (2 * tried)) / (1 + z * z / tried)
    reach = z * math.sqrt(share * (1 - share) / tried + (z / (2 * tried)) ** 2) / (1 + z * z / tried)
    return middle - reach, middle + reach


def modules(rooms: Sequence[str]) -> list[Path]:
    found = []
    for room in rooms:
        path = ROOT / "ncpipe" / room
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += [file.relative_to(ROOT / "ncpipe") for file in files if file.stat().st_size]
    return found


def try_named(tree: Tree) -> int:
    """Put in every named fault; how many survive or can no longer be put in."""
    bad = 0
    tree.must_pass(sorted({name for fault in NAMED for name in fault.tests}))
    for fault in NAMED:
        source = (ROOT / "ncpipe" / fault.module).read_text(encoding="utf-8")
        if source.count(fault.code) != 1:
            outcome = "gone: its code is not there any more, or more than once"
        else:
            changed = source.replace(fault.code, fault.wrong)
            outcome = tree.kills(Path(fault.module), changed, fault.tests)
        bad += outcome != "killed"
        print(f"{outcome:>8}  {fault.what}", flush=True)
    return bad


def try_sample(tree: Tree, sample: Sequence[Mutant]) -> None:
    """Put in every mutant of a sample; print survivors as they are found, and the score of each room."""
    counts: dict[str, Counter[str]] = {}
    tree.must_pass(sorted({name for mutant in sample for name in nearest_tests(mutant.module)}))
    for number, mutant in enumerate(sample, 1):
        began = time.monotonic()
        outcome = tree.kills(mutant.module, mutant.source, nearest_tests(mutant.module))
        counts.setdefault(mutant.module.parts[0], Counter())[outcome] += 1
        line = f"{number:>4}/{len(sample)} {time.monotonic() - began:>4.0f} s {outcome:>8}  {mutant.where}"
        print(line if outcome == "killed" else f"{line}: {mutant.what}", flush=True)
    total: Counter[str] = sum(counts.values(), Counter())
    for room, count in [*counts.items(), ("all", total)]:
        tried, killed = sum(count.values()), count["killed"] + count["endless"]
        low, high = interval(killed, tried)
        print(
            f"{room:>10}: {killed} of {tried} killed ({count['endless']} endless), "
            f"{100 * killed / tried:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=ROOMS, help=f"of {', '.join(ROOMS)}, or modules of them")
    parser.add_argument("--sample", type=int, default=200, help="mutants tried, drawn from all (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--named", action="store_true", help="only the named faults")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    everything = [place for module in modules(chosen.rooms) for place in places_in(module)]
    print(f"{len(everything)} places in {len(modules(chosen.rooms))} modules", flush=True)
    import matplotlib.pyplot  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        bad = try_named(tree)
        if not chosen.named:
            random.Random(chosen.seed).shuffle(everything)
            found = (mutant for place in everything if (mutant := mutant_at(place)))
            try_sample(tree, list(itertools.islice(found, chosen.sample)))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
