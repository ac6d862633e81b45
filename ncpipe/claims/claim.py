"""Define what all claims of claims.yaml have, and how a number answers one.

Editors show the docstrings of these records. `ncpipe.claims.quantities` has a record for each quantity.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pandas as pd

from ncpipe.claims.evidence import Answer, NoNumberError, Points, Side, Split, Tables, When, at_depth, mean
from ncpipe.config.bounds import Bound, Count, Number, Positive

Author = Literal["paper", "ours", "yours"]
Scale = Literal["stated settings", "reduced", "toy"]
Verdict = Literal["agrees", "disagrees", "undecided", "does not apply"]
ABSENT: Verdict = "does not apply"


@dataclass(frozen=True)
class Expect:
    """Where the number lies if the claim holds: one of the keys.

    below: less than this.
    above: more than this.
    at_least: this or more.
    at_most: this or less.
    between: from the first to the second of two.
    within: for a theory: the largest distance from `against`, as a share of it. For a line: the largest
    half-width of the slope's interval with which a line that is not rejected agrees.
    """

    below: Number | None = None
    above: Number | None = None
    at_least: Number | None = None
    at_most: Number | None = None
    between: tuple[Number, ...] = ()
    within: Positive | None = None

    def __post_init__(self) -> None:
        if len([value for value in vars(self).values() if value not in (None, ())]) != 1:
            raise ValueError(f"give one of {', '.join(vars(self))}")
        if self.between and not (len(self.between) == 2 and self.between[0] < self.between[1]):
            raise ValueError("between takes two numbers, the smaller one first")

    def bound(self, target: float = math.nan) -> Bound:
        """Return the expected range; `within` is relative to the target, or absolute if the target is 0."""
        if self.between:
            return Bound(self.between[0], self.between[1])
        if self.within is not None:
            reach = self.within * (abs(target) or 1)
            return Bound(target - reach, target + reach)
        low = self.above if self.above is not None else self.at_least
        high = self.below if self.below is not None else self.at_most
        return Bound(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            open_low=self.above is not None,
            open_high=self.below is not None,
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a paper, or of ours, and the number that answers it.

    quantity: kind of number.
    id: unique name in tables.
    ref: paper and place in it.
    statement: the claim in our words.
    expect: where the number lies if the claim holds.
    author: who makes it: the `paper`; `ours`, of ncpipe's own studies; `yours`, of a study of your own.
    scale: `stated settings` with all settings that the paper states, `reduced` with some of them smaller,
    `toy` on other data or networks; null where none applies.
    identity: whether it is a proven identity, whose failure is an error of the code and fails the pipeline.
    """

    quantity: str
    id: str
    ref: str
    statement: str
    expect: Expect
    author: Author = "paper"
    scale: Scale | None = None
    identity: bool = False

    @property
    def number(self) -> str:
        """The name of the number in tables."""
        return self.quantity

    def about(self) -> str:
        """Return what the number is of, in a few words."""
        raise NotImplementedError

    def mistakes(self) -> Iterator[str]:
        """Yield a line, which begins with a key, for each contradiction between keys."""
        yield from ()

    def answer(self, tables: Any) -> Answer:
        """Return the number that answers the claim; raise NoNumberError, which says why there is none."""
        raise NotImplementedError

    def decision(self, number: Answer) -> Verdict:
        """Return the verdict on a number that is there.

        - `agrees`: the whole interval lies in the expected range.
        - `disagrees`: no part of the interval does.
        - `undecided`: otherwise, for a trend over fewer than three depths, without an interval because a
          setting has one run, and for a slope whose means turn back (`Answer.turns`). A number with a p-value
          instead of an interval is undecided unless the test rejects 0.
        """
        bound = self.expect.bound(number.target)
        if number.few:
            return "undecided"
        if number.rejected:
            return "agrees" if bound.admits(number.value) else "disagrees"
        if math.isnan(number.low) or math.isnan(number.high) or number.turns:
            return "undecided"
        if bound.admits(number.low) and bound.admits(number.high):
            return "agrees"
        below = number.high < bound.low or (bound.open_low and number.high == bound.low)
        above = number.low > bound.high or (bound.open_high and number.low == bound.high)
        return "disagrees" if below or above else "undecided"

    def expected(self, number: Answer) -> str:
        """Return the expected range, as `< 0` or `0.3 to 0.5`."""
        if self.expect.between:
            return f"{self.expect.between[0]:g} to {self.expect.between[1]:g}"
        return str(self.expect.bound(number.target))

    def result(self, number: Answer) -> str:
        """Return what a number shows besides itself, or why there is none."""
        return number.missing


@dataclass(frozen=True, kw_only=True)
class RunClaim(Claim):
    """A claim about runs.

    metric: of docs/metrics.md, at the last layer, or a number of runs.csv.
    experiment: a name of params.yaml; left out, each of the sweep's has the claim, its name behind the id.
    split: train, test, weights for the metrics of W, true_labels for training samples by these, or target for
    classes that the network never saw.
    depth: L, where the number is of one depth.
    value: of the study's axis, where the number is of one value.
    panel: title of the panel of data/claims/panels.png that shows what the number is made of.
    when: the epoch at which the metric is taken: the first at which another has fallen to a level. The metric
    `epoch` is that epoch itself.
    """

    depends_on_selection: ClassVar[bool] = True  # of runs

    metric: str
    experiment: str = ""
    split: Split = "train"
    depth: Count | None = None
    value: Number | None = None
    panel: str = ""
    when: When | None = None

    @property
    def side(self) -> Side:
        """The runs and their metric."""
        return Side(self.experiment, self.metric, self.split, self.depth, self.value, when=self.when)

    def sides(self) -> list[Side]:
        """Return all runs and metrics that the number is made of."""
        return [self.side]

    def about(self) -> str:
        return self.side.words()

    def mistakes(self) -> Iterator[str]:
        if self.expect.within is not None:
            yield "expect.within: is for a theory or a line; give between, below or the like"
        if self.metric == "epoch" and self.when is None:
            yield "metric: epoch is that of `when`; give `when`"

    def answer(self, tables: Tables) -> Answer:
        """Return the number that answers the claim; raise NoNumberError, which says why there is none.

        This is the mean over the seeds of one setting, with Student's interval. Only selected runs count.
        """
        return mean(at_depth(self.values(tables), self.depth), tables.rule)

    def values(self, tables: Tables) -> pd.DataFrame:
        """Return the runs with their values (`Side.values`)."""
        return self.side.values(tables)

    def points(self, tables: Tables) -> list[Points]:
        """Return what a panel shows of the claim: by default the runs of each side beside each other."""
        points = []
        for side in self.sides():
            with contextlib.suppress(NoNumberError):
                table = at_depth(side.values(tables), side.depth)
                points.append(Points("place", side, table.assign(at=math.nan, name=side.experiment)))
        return points
