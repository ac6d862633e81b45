"""Single faults that tests once let pass, with the tests that see them now: for `mutants.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`wrong` in place of `code` in a module below ncpipe/; tests: files that must fail."""

    what: str
    module: str
    code: str
    wrong: str
    tests: tuple[str, ...]


SESSION = "training/session.py"
TRAINING = ("tests/test_training.py",)

NAMED = [
    Fault(
        "a line search without trials",
        SESSION,
        "            max_eval=1 + TRIALS,",
        "            max_eval=None,",
        TRAINING,
    ),
    Fault(
        "a search that goes on after nothing moved",
        SESSION,
        "            self.search.state.clear()\n",
        "",
        TRAINING,
    ),
    Fault(
        "a search tried in vain again and again",
        SESSION,
        "            self.exhausted = rate if anew else None\n",
        "",
        TRAINING,
    ),
    Fault(
        "a search that takes what is not finite for a loss",
        SESSION,
        "torch.where(finite, gradient, math.nan)",
        "gradient",
        TRAINING,
    ),
]
