"""Describe solutions of the deep features model by their class means up to scale [S24 App. A.1].

A solution's class means are multiples of one matrix B in the layers 2..L-1, where ReLU changes nothing, and
of another, C, in layer L before the ReLU. DNC is B = C = I; SRG has the incidence matrix of the complete
graph of r points for B, whose edges are the classes. Rows are classes: S24's matrices, transposed. All
float64; `dufm` computes losses from these, `dufm_solutions` the matrices.

K  classes    r  points of the complete graph, K = r(r-1)/2    R  rows of signs    m  coordinates
"""

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ncpipe.study import InputError


@dataclass(frozen=True)
class Shape:
    """inner (K, m): B, not negative; last (K, m_L): C. Scaled so that I and T_r stand for themselves."""

    inner: Tensor
    last: Tensor


@dataclass(frozen=True)
class Constants:
    """All that the loss of a solution needs of its shape.

    inner_nuclear: |B|_*; inner_rank: rank B, the least |W|_F^2 with B = B W^T. lift: least |W|_F^2 with C = B
    W^T. last_nuclear: |C|_*, which stands for all three where L = 2. eigenvalues: of max(C, 0) max(C, 0)^T,
    each with its multiplicity; these sum to K.
    """

    inner_nuclear: float
    inner_rank: int
    lift: float
    last_nuclear: float
    eigenvalues: tuple[float, ...]
    multiplicities: tuple[int, ...]

    @property
    def classes(self) -> int:
        return sum(self.multiplicities)

    def log_price(self, depth: int) -> float:
        """Return log G, where s^L/(G Lambda) = a_L/lambda_WL.

        G is |C|_*^2 for L = 2, else |B|_*^2 rank^(L-3) lift.
        """
        if depth == 2:
            return 2 * math.log(self.last_nuclear)
        inner = 2 * math.log(self.inner_nuclear) + (depth - 3) * math.log(self.inner_rank)
        return inner + math.log(self.lift)


def dnc_shape(classes: int) -> Shape:
    """Return deep neural collapse: orthogonal class means of one length in every layer [S24 Def. 10]."""
    return Shape(torch.eye(classes, dtype=torch.float64), torch.eye(classes, dtype=torch.float64))


def dnc_constants(classes: int) -> Constants:
    """Return the constants of `dnc_shape`."""
    return Constants(classes, classes, classes, classes, (1.0,), (classes,))


def srg_shape(points: int, minus: int = 2) -> Shape:
    """Return B = T_r and, for C, the rows of A T_r scaled to length 1.

    A has all rows with `minus` entries -1, the others 1. minus = 2 is S24's SRG [Def. 9]; floor(r/2), "SRG-k"
    here, has a lower loss from r = 6 on. An edge has the
    entry 1 in C where both its ends are 1, -1 where both are -1, else 0.
    """
    _check(points, minus)
    inner = incidence(points)
    last = inner @ signs(points, minus).T
    return Shape(inner, last / last.norm(dim=0))


def srg_constants(points: int, minus: int = 2) -> Constants:
    """Return the constants of `srg_shape` in closed form [S24 Lemmas 13-16, which have minus = 2].

    Lemma 16's first eigenvalue is (r-2)^2 (r-3)^2/(2c), c = (r-2)(r-3) + 2, for minus = 2; (r-2)(5r-19)/c as
    printed agrees at r = 4 and 5 only.
    """
    _check(points, minus)
    r, rows = points, math.comb(points, minus)
    square = math.comb(r - minus, 2) + math.comb(minus, 2)  # |row|^2 of C before it is made 1
    # In how many rows the given 2, 3 or 4 points are all 1.
    both, three, four = (math.comb(r - count, minus) for count in (2, 3, 4))
    # A^T A = diagonal I + shared 11^T
    shared = rows * ((r - 2 * minus) ** 2 - r) / (r * (r - 1))
    diagonal = rows - shared
    last = math.sqrt((diagonal + r * shared) * (r - 1) / (2 * square))
    last += (r - 1) * math.sqrt(diagonal * (r - 2) / (4 * square))
    classes = r * (r - 1) // 2
    # max(C, 0) max(C, 0)^T = four 11^T + (both - four) I + (three - four) G, G the graph's adjacency matrix
    rest = [both - four + (three - four) * eigenvalue for eigenvalue in (2 * (r - 2), r - 4, -2)]
    rest[0] += classes * four
    return Constants(
        math.sqrt(2) + math.sqrt((r - 1) * (r - 2)),
        r,
        rows * r * (r - 1) / (4 * square),
        last,
        tuple(value / square for value in rest),
        (1, r - 1, r * (r - 3) // 2),
    )


def incidence(points: int) -> Tensor:
    """Return T_r^T (K, r): 1/sqrt(r-1) where a point is an end of the edge, edges in order [Def. 3]."""
    edges = torch.tensor(list(combinations(range(points), 2)))
    return torch.zeros(len(edges), points).double().scatter_(1, edges, (points - 1) ** -0.5)


def signs(points: int, minus: int) -> Tensor:
    """Return all rows (R, r) with `minus` entries -1 and the others 1, R = r over `minus`."""
    places = torch.tensor(list(combinations(range(points), minus)))
    return torch.ones(len(places), points).double().scatter_(1, places, -1.0)


def largest_points(classes: int) -> int:
    """Return the largest r with r(r-1)/2 <= K."""
    return (1 + math.isqrt(1 + 8 * classes)) // 2


def _check(points: int, minus: int) -> None:
    """Raise InputError unless r >= 4 and the ReLU leaves an edge in every row: 2 <= minus <= r - 2."""
    if points < 4:
        raise InputError(f"points: {points}; SRG solutions have at least 4, and so exist from 6 classes on")
    if not 2 <= minus <= points - 2:
        raise InputError(f"minus: {minus}; expected 2 to r - 2 = {points - 2} entries -1 in a row")
