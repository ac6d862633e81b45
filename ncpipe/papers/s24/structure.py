"""Recognise the known structures of low-rank solutions by the Gram matrices of class means [S24 App. B].

Two layers decide: the last but one, whose class means are the edges of a graph in the incidence structures
(two classes meet at 1/2 where the edges share a point, else at 0), and the last one. Gram matrices are over
their mean diagonal here.

K  classes    d  feature width    r  points of a complete graph
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = 0.01  # most that squared lengths of class means may differ, over their mean
CLUSTER = 0.05  # most that entries of one kind may differ from each other and from their exact value
GIVEN_UP = 1e-3  # an output is given up if it is nowhere above this share of the largest
LEVEL = 1e-3  # of L_DNC: how near a loss must be for "DNC found"
OTHER = "other"
RANK_TOLERANCE = 1e-3  # of the largest singular value: those above it count


@dataclass(frozen=True)
class Structure:
    """Name the structure of the class means of the last two layers.

    inner: of the last layer but one, `DNC` (orthogonal, one length), `T(r)` (incidence of the complete
    graph), `C_4` (the square), `L(K_m,n)` (incidence of the complete bipartite graph) or `other`. last: of
    the last layer before its ReLU, `DNC`, `SRG`, `SRG-k` (k entries -1 in S24's A in place of two) or
    `other`.
    """

    inner: str
    last: str

    @property
    def name(self) -> str:
        """`DNC`, `SRG` and `SRG-k` where both layers fit; the inner structure alone does not make one."""
        if self.inner == "DNC" and self.last == "DNC":
            return "DNC"
        if self.inner.startswith("T(") and self.last.startswith("SRG"):
            return self.last
        if self.inner.startswith(("DNC", "T(")):
            return f"{self.inner}, other last layer"
        return self.inner


def structure(inner: Tensor, last: Tensor) -> Structure:
    """Return the structure of class means (K, d): M_{L-1} after its ReLU, and layer L before its ReLU.

    After, since a solution's first hidden layer is not determined before its ReLU: class means (1, -t) and
    (-t, 1) cost the same for all t in [0, 1]. For L = 2 give the means of the one hidden layer after its ReLU
    for both.
    """
    gram = _gram(inner)
    adjacent = None if gram is None else _two_clusters(gram)
    name = OTHER
    if gram is not None and adjacent is not None and _fits(gram, adjacent, 0.5, 0.0):
        name = _graph_name(adjacent) if bool(adjacent.any()) else "DNC"
    return Structure(name, _last_layer(last, adjacent if name.startswith("T(") else None))


def classes_given_up(outputs: Tensor) -> int:
    """Return how many outputs are 0 for every class; outputs (K, K) of the class means, one class a row.

    Where a class is given up its features and its row of the last layer are 0, and it adds 1/(2K) to the
    error.
    """
    largest = outputs.abs().amax(0)
    return int((largest <= GIVEN_UP * largest.max()).sum())


def ranks(means: Sequence[Tensor], tolerance: float = RANK_TOLERANCE) -> list[int]:
    """Return the rank of each layer's class means (K, d): singular values above a share of the largest."""
    return [int(torch.linalg.matrix_rank(matrix, atol=0.0, rtol=tolerance)) for matrix in means]


def rank_gap(means: Sequence[Tensor], tolerance: float) -> float:
    """Return the least gap s_r/s_{r+1} at the ranks r of the layers; inf where all values count."""
    gaps = [math.inf]
    for matrix, rank in zip(means, ranks(means, tolerance), strict=True):
        if 0 < rank < min(matrix.shape):
            values = torch.linalg.svdvals(matrix)
            gaps.append((values[rank - 1] / values[rank]).item())
    return min(gaps)


def dnc_found(means: Sequence[Tensor], loss: float, level: float, tolerance: float = RANK_TOLERANCE) -> bool:
    """Return whether a run reached deep neural collapse: rank K in M_2..M_L and a loss within .1 % of L_DNC.

    means: of the layers 2..L, after the ReLU, each (K, d).
    """
    full = all(rank == len(means[0]) for rank in ranks(means, tolerance))
    return full and abs(loss / level - 1) <= LEVEL


def _gram(means: Tensor) -> Tensor | None:
    """Return the Gram matrix (K, K) over its mean diagonal; None where lengths differ or are not finite."""
    rows = means.double()
    gram = rows @ rows.T
    gram = gram / gram.diagonal().mean()
    lengths = gram.diagonal()
    spread = (lengths.max() - lengths.min()).item()
    return gram if math.isfinite(spread) and spread < LENGTHS else None


def _two_clusters(gram: Tensor) -> Tensor | None:
    """Return which pairs (K, K) are of the upper kind: none if all are near 0, None without two kinds."""
    above = torch.ones_like(gram, dtype=torch.bool).triu(1)
    values = gram[above].sort().values
    if (values[-1] - values[0]).item() < CLUSTER:
        empty = torch.zeros_like(gram, dtype=torch.bool)
        return empty if values.abs().max().item() < CLUSTER else None
    cut = int((values[1:] - values[:-1]).argmax())
    lower, upper = values[: cut + 1], values[cut + 1 :]
    if max((part[-1] - part[0]).item() for part in (lower, upper)) >= CLUSTER:
        return None
    level = (lower[-1] + upper[0]) / 2
    adjacent: Tensor = gram > level
    return adjacent.fill_diagonal_(False)


def _fits(gram: Tensor, adjacent: Tensor, near: float, far: float) -> bool:
    """Return whether pairs of the graph have the entry `near`, and the others `far`."""
    other = ~adjacent
    other = other.fill_diagonal_(False)
    worst = 0.0
    for pairs, value in ((adjacent, near), (other, far)):
        if bool(pairs.any()):
            worst = max(worst, (gram[pairs] - value).abs().max().item())
    return worst < CLUSTER


def _graph_name(adjacent: Tensor) -> str:
    """Return T(r), C_4 or L(K_m,n) for the line graph of a complete or complete bipartite graph."""
    import networkx  # only here: a second to import

    graph = networkx.from_numpy_array(adjacent.int().numpy())
    if not networkx.is_connected(graph):
        return OTHER
    try:
        root = networkx.inverse_line_graph(graph)
    except networkx.NetworkXError:
        return OTHER
    points, lines = root.number_of_nodes(), root.number_of_edges()
    if points >= 4 and lines == points * (points - 1) // 2:
        return f"T({points})"
    if networkx.is_bipartite(root):
        sides = sorted(map(len, networkx.bipartite.sets(root)))
        if lines == sides[0] * sides[1]:
            return "C_4" if sides == [2, 2] else f"L(K_{sides[0]},{sides[1]})"
    return OTHER


def _last_layer(means: Tensor, triangular: Tensor | None) -> str:
    """Return the name of the last layer's means before the ReLU.

    triangular: the graph of the previous layer, if it is T(r).
    """
    gram, after = _gram(means), _gram(means.clamp(min=0))
    if gram is None or after is None:
        return OTHER
    nothing = torch.zeros_like(gram, dtype=torch.bool)
    if _fits(gram, nothing, 0.0, 0.0) and _fits(after, nothing, 0.0, 0.0):
        return "DNC"
    if triangular is not None:
        points = (1 + math.isqrt(1 + 8 * len(means))) // 2
        for minus in range(2, points - 1):
            before_values, after_values = _triangular_values(points, minus)
            if _fits(gram, triangular, *before_values) and _fits(after, triangular, *after_values):
                return "SRG" if minus == 2 else f"SRG-{minus}"
    return OTHER


def _triangular_values(points: int, minus: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the Gram entries of A T_r, before and after the ReLU, for edges with and without a common point.

    A has all rows with `minus` entries -1; an edge is 1 where both ends are 1, -1 where both are -1, else 0.
    """

    def rows(named: int, negative: int) -> int:
        """Count rows with -1 at `negative` of the `named` positions and 1 at the others."""
        return math.comb(points - named, minus - negative) if minus >= negative else 0

    same = rows(2, 0) + rows(2, 2)
    near = rows(3, 0) + rows(3, 3)
    far = rows(4, 0) + rows(4, 4) - 2 * rows(4, 2)
    return (near / same, far / same), (rows(3, 0) / rows(2, 0), rows(4, 0) / rows(2, 0))
