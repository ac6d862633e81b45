"""Names of the structures of class means: exact ones, noisy ones, and ones that only look alike."""

from itertools import combinations

import networkx
import pytest
import torch

from ncpipe.papers.s24.structure import classes_given_up, dnc_found, ranks, structure


def incidence(graph: networkx.Graph) -> torch.Tensor:
    """Class means (edges, points) whose rows are the edges of a graph."""
    matrix = networkx.incidence_matrix(networkx.convert_node_labels_to_integers(graph)).toarray()
    return torch.from_numpy(matrix.T).double()


def factor(gram: torch.Tensor) -> torch.Tensor:
    """Class means with this Gram matrix."""
    values, vectors = torch.linalg.eigh(gram)
    assert values.min() > -1e-12
    return vectors * values.clamp(min=0).sqrt()


def adjacency(graph: networkx.Graph) -> torch.Tensor:
    return torch.from_numpy(networkx.to_numpy_array(graph))


def last_layer(points: int, minus: int) -> torch.Tensor:
    """Edges (K, R): 1 where both ends are 1, -1 where both are -1, else 0, for all rows of signs."""
    rows = []
    for negative in combinations(range(points), minus):
        sign = [-1 if point in negative else 1 for point in range(points)]
        rows.append([(sign[a] + sign[b]) / 2 for a, b in combinations(range(points), 2)])
    return torch.tensor(rows).double().T


def turned(means: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(means.shape[1], means.shape[1], generator=generator, dtype=torch.float64)
    return means @ torch.linalg.qr(draw).Q


def noisy(means: torch.Tensor, size: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(means.shape, generator=generator, dtype=torch.float64)
    return means + size * means.square().mean().sqrt() * draw


@pytest.mark.parametrize("points", [4, 5, 6, 7])
def test_srg_of_any_order_of_classes_and_scale(points):
    order = torch.randperm(points * (points - 1) // 2, generator=torch.Generator().manual_seed(points))
    for minus in range(2, points - 1):
        inner = incidence(networkx.complete_graph(points))[order]
        last = last_layer(points, minus)[order]
        found = structure(0.3 * inner, 7 * last)
        assert found.inner == f"T({points})"
        assert found.last == found.name == ("SRG" if minus == 2 else f"SRG-{minus}")
        assert structure(noisy(inner, 0.001), noisy(last, 0.001)) == found
        assert structure(turned(inner), last) == found, "any axes, as the layer has no ReLU to mind"


def test_dnc():
    eye = torch.eye(7).double()
    found = structure(2 * turned(eye), eye)
    assert (found.name, found.inner, found.last) == ("DNC", "DNC", "DNC")
    assert structure(noisy(eye, 0.003), noisy(eye, 0.003)).name == "DNC"
    assert structure(eye, turned(eye)).name == "DNC, other last layer", "the ReLU sees the axes"


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (networkx.complete_bipartite_graph(2, 2), "C_4"),
        (networkx.complete_bipartite_graph(3, 3), "L(K_3,3)"),
        (networkx.complete_bipartite_graph(2, 5), "L(K_2,5)"),
        (networkx.complete_graph(4), "T(4)"),
        (networkx.star_graph(5), "other"),  # all edges meet: no two kinds of pairs
        (networkx.path_graph(6), "other"),
        (networkx.disjoint_union(networkx.complete_graph(4), networkx.complete_graph(4)), "other"),
        (networkx.petersen_graph(), "other"),
    ],
)
def test_incidence_structures(graph, name):
    means = incidence(graph)
    found = structure(means, torch.eye(len(means)).double())
    assert found.inner == name
    assert found.name == (f"{name}, other last layer" if name.startswith("T(") else name)


def test_the_graph_alone_makes_no_srg():
    graph = adjacency(networkx.line_graph(networkx.complete_graph(5)))
    other = 0.1 + 0.9 * torch.eye(10).double() + 0.3 * graph  # 1, .4 and .1 in place of 1, .5 and 0
    edges = list(networkx.line_graph(networkx.complete_graph(5)))
    order = [list(combinations(range(5), 2)).index(tuple(sorted(edge))) for edge in edges]
    last = last_layer(5, 2)[order]
    found = structure(factor(other), last)
    assert (found.name, found.last) == ("other", "other")
    inner = factor(torch.eye(10).double() + graph / 2)
    assert structure(inner, last).name == "SRG"
    for wrong in (turned(last), torch.eye(10).double(), last.flip(0), last.clamp(min=0)):
        assert structure(inner, wrong).name == "T(5), other last layer"
    claw = torch.eye(4).double() + adjacency(networkx.star_graph(3)) / 2  # no line graph
    assert structure(factor(claw), torch.eye(4).double()).name == "other"


def test_unequal_lengths_noise_and_missing_numbers_are_other():
    inner, last = incidence(networkx.complete_graph(5)), last_layer(5, 2)
    longer = inner.clone()
    longer[3] *= 1.01
    assert structure(longer, last).name == "other"
    assert structure(noisy(inner, 0.1), last).name == "other"
    assert structure(torch.zeros(10, 5).double(), torch.zeros(10, 5).double()).name == "other"
    assert structure(torch.full((10, 5), torch.nan), last).name == "other"
    one = torch.ones(4, 1).double()
    assert structure(one, one).name == "other"


def test_ranks_and_dnc_found():
    full, low = torch.eye(5).double(), incidence(networkx.complete_graph(4))[:5]
    assert ranks([full, low, 0 * full]) == [5, 4, 0]
    assert dnc_found([full, full], 0.2001, 0.2)
    assert not dnc_found([full, full], 0.2003, 0.2)
    assert not dnc_found([full, full], 0.1997, 0.2)
    assert not dnc_found([full, low], 0.2, 0.2)


def test_classes_given_up_are_outputs_that_are_zero_everywhere():
    outputs = 0.9 * torch.eye(6)
    assert classes_given_up(outputs) == 0
    outputs[:, 2] = 0
    outputs[:, 4] = 1e-5
    assert classes_given_up(outputs) == 2
    outputs[2, 0] = 0.1
    assert classes_given_up(outputs) == 2, "an output for no class, not a class without outputs"
    merged = torch.eye(6)
    merged[:2, :2] = 0.5
    assert classes_given_up(merged) == 0, "two classes with one output each of a half are not given up"
    assert classes_given_up(torch.zeros(3, 3)) == 3
