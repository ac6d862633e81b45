"""Every metric of docs/metrics.md by its definition, in 120 digits: the answers of the conformance suite.

Written from that page and the papers that it names; shares no code with the package. A number of the input is
taken as the float64 that it is. Slow and plain: sums, inner products and an eigenvalue routine.

N  samples    K  classes    d  width    c  the page's cutoff for lengths between classes
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from mpmath import mp, mpf

Vector = list[mpf]
Matrix = list[Vector]
Values = dict[tuple[str, str], mpf]  # by split and metric

mp.dps = 120
EPS = mpf(2) ** -52
INF, NAN = mpf("inf"), mpf("nan")
RANK_TOLERANCE = mpf(1) / 1000
COUNTS = {"nc1_pinv_rank", "rank_means", "rank_weights", "ncc_error", "nc4_mismatch"}
MOST = 256  # classes of which a margin is asked for
QUANTILES = {"margin_p05": 5, "margin_p50": 50, "margin_p95": 95}  # percent


@dataclass(frozen=True)
class Layer:
    """features (N, d) with labels (N,) in 0..K-1; weight (K, d) and bias (K,) where there is a classifier."""

    features: Matrix
    labels: list[int]
    weight: Matrix | None = None
    bias: Vector | None = None
    test_features: Matrix | None = None
    test_labels: list[int] | None = None


@dataclass(frozen=True)
class Vectors:
    """features (N, d) with targets (N, t), and the last layer's weight (t, d) and bias (t,)."""

    features: Matrix
    targets: Matrix
    weight: Matrix
    bias: Vector


@dataclass(frozen=True)
class Tokens:
    """features (N, C, d), all tokens of a sample, with labels (N,) in 0..K-1."""

    features: list[Matrix]
    labels: list[int]


class Classes:
    """Class means, their centre, spreads and the cutoff of one split."""

    def __init__(self, features: Matrix, labels: Sequence[int]) -> None:
        count = max(labels) + 1
        members = [[h for h, y in zip(features, labels, strict=True) if y == k] for k in range(count)]
        self.features, self.labels, self.count, self.width = features, labels, count, len(features[0])
        self.means = [average(rows) for rows in members]
        self.variances = [
            mp.fsum(square(minus(h, mean)) for h in rows) / len(rows)
            for mean, rows in zip(self.means, members, strict=True)
        ]
        self.within = mp.fsum(len(rows) * v for rows, v in zip(members, self.variances, strict=True)) / len(
            features
        )
        size = max(singular_values(self.means)[0], mp.sqrt(max(self.variances)))
        self.cutoff = max(count, self.width) * EPS * size
        if all(length(mean) <= self.cutoff for mean in self.means):
            self.means = [[mpf(0)] * self.width for _ in self.means]
        centre = average(self.means)
        self.centred = [self._resolved(minus(mean, centre)) for mean in self.means]
        self.between = mp.fsum(square(m) for m in self.centred) / count

    def _resolved(self, vector: Vector) -> Vector:
        return vector if length(vector) > self.cutoff else [mpf(0)] * self.width


def nearest_means(classes: Classes, features: Matrix) -> list[int]:
    """For each sample the lowest class whose mean is at most the cutoff further away than the nearest."""
    found = []
    for h in features:
        distances = [length(minus(h, mean)) for mean in classes.means]
        limit = min(distances) + classes.cutoff
        found.append(next(k for k, r in enumerate(distances) if r <= limit))
    return found


def cdnv_terms(classes: Classes) -> Vector | None:
    """(Var_i + Var_j)/(2 |mu_i - mu_j|^2) of every pair; None where two class means coincide."""
    terms = []
    for i, j in combinations(range(classes.count), 2):
        distance = length(minus(classes.means[i], classes.means[j]))
        if distance <= classes.cutoff:
            return None
        terms.append((classes.variances[i] + classes.variances[j]) / (2 * distance**2))
    return terms


def direction_pairs(vectors: Matrix, slack: Vector) -> list[tuple[mpf, mpf]] | None:
    """Distance and cosine of every pair's directions; None where two are within slack_i + slack_j."""
    units = [unit(v) for v in vectors]
    found = []
    for i, j in combinations(range(len(units)), 2):
        apart = length(minus(units[i], units[j]))
        if apart <= slack[i] + slack[j]:
            return None
        found.append((apart, mp.fdot(units[i], units[j])))
    return found


def decisions(layer: Layer, own: Classes) -> tuple[list[int], Vector]:
    """For each sample the lowest class whose logit is the largest, up to rounding, and its margin."""
    weight, bias = layer.weight, layer.bias or [mpf(0)] * own.count
    assert weight is not None
    longest, largest = max(map(length, weight)), max(map(abs, bias))
    decided, margins = [], []
    for h, y in zip(own.features, own.labels, strict=True):
        logits = [mp.fdot(row, h) + b for row, b in zip(weight, bias, strict=True)]
        limit = max(logits) - max(len(weight), len(h)) * EPS * (longest * length(h) + largest)
        decided.append(next(k for k, f in enumerate(logits) if f >= limit))
        margins.append(logits[y] - max(f for k, f in enumerate(logits) if k != y))
    return decided, margins


def all_metrics(layer: Layer | Vectors | Tokens) -> Values:
    """Every value by split and metric; of vectors those of a split."""
    if isinstance(layer, Vectors):
        return {("train", name): value for name, value in of_vector_targets(layer)}
    if isinstance(layer, Tokens):
        return {("train", name): value for name, value in of_all_tokens(layer)}
    train = Classes(layer.features, layer.labels)
    values = {("train", name): value for name, value in of_split(train, train, layer)}
    if layer.test_features is not None and layer.test_labels is not None:
        test = Classes(layer.test_features, layer.test_labels)
        values |= {("test", name): value for name, value in of_split(test, train, layer)}
        values |= {("test", name): value for name, value in of_held_out(test, train)}
    if layer.weight is not None:
        values |= {("weights", name): value for name, value in of_weights(layer.weight)}
    return values


def of_split(own: Classes, train: Classes, layer: Layer) -> Iterator[tuple[str, mpf]]:
    directions = between_directions(own)
    yield "nc1_trace_ratio", ratio(own.within, own.between)
    yield "nc1_pinv", nc1_pinv(own, directions) if directions else INF
    yield "nc1_pinv_rank", mpf(len(directions))
    yield "dnc1_trace_pinv", ratio(own.within, mp.fsum(own.count / s**2 for s, _ in directions))
    yield "tcv", own.within
    yield "feature_norm", mp.sqrt(mp.fsum(map(square, own.features)) / len(own.features))
    terms = cdnv_terms(own)
    yield "cdnv", INF if terms is None else deviation(terms)[0]
    if own.count > own.width + 1:
        none = terms is not None and any(term == 0 for term in terms)
        logs = [] if terms is None or none else [mp.log(term) for term in terms]
        yield "cdnv_log", INF if terms is None else -INF if none else deviation(logs)[0]
    yield from of_vectors("means", own.centred)
    units = [unit(m) for m in own.centred]
    many = own.count > own.width + 1  # no simplex has so many corners
    yield "nc2_means", NAN if many or None in units else distance_to_frame(gram(units, units))
    yield "nc2_condition", condition(own.means)
    if many:
        slack = [own.cutoff / length(m) if u else mpf(0) for m, u in zip(own.centred, units, strict=True)]
        yield from of_many_directions("means", own.centred, slack)
    yield from spectrum("means", own.means)
    nearest = nearest_means(train, own.features)
    yield "ncc_error", share(k != y for k, y in zip(nearest, own.labels, strict=True))
    if layer.weight is not None:
        yield from of_classifier(own, units, nearest, layer)


def of_classifier(
    own: Classes, units: list[Vector | None], nearest: list[int], layer: Layer
) -> Iterator[tuple[str, mpf]]:
    weight = layer.weight
    assert weight is not None
    longest = max(map(length, weight))
    decided, margins = decisions(layer, own)
    cosines = [cosine(h, weight[y]) for h, y in zip(own.features, own.labels, strict=True)]
    yield "nc4_mismatch", share(k != other for k, other in zip(decided, nearest, strict=True))
    yield "nc3_cosine", 1 - mp.fsum(cosines) / len(cosines)
    scaled = weight if longest == 0 else [[w / longest for w in row] for row in weight]
    many = len(weight) > len(weight[0]) + 1
    undefined = many or None in units or longest == 0
    yield "nc3_duality", NAN if undefined else distance_to_frame(gram(scaled, units))
    if many:
        yield from uniform_duality(weight, own.centred)
    margins.sort()
    yield "margin_min", margins[0]
    yield "margin_mean", mp.fsum(margins) / len(margins)
    for name, percent in QUANTILES.items():
        yield name, margins[-(-percent * len(margins) // 100) - 1]  # the ceil(pN)-th smallest


def of_vector_targets(layer: Vectors) -> Iterator[tuple[str, mpf]]:
    features, targets, weight = layer.features, layer.targets, layer.weight
    count = len(targets[0])
    mean = average(features)
    centred, wanted = [minus(h, mean) for h in features], [minus(y, average(targets)) for y in targets]
    pairs = singular_pairs(centred)
    squares = [s**2 for s, _ in pairs]
    axes = [v for _, v in pairs[:count]]
    yield "nrc1", outside(features, axes)
    yield "nrc2", outside(features, [v for _, v in singular_pairs(weight)])
    yield "nrc1_variance", mp.fsum(squares[count:]) / mp.fsum(squares)
    yield "stable_rank_features", mp.fsum(squares) / squares[0]
    crossed, own, of_targets = columns(centred, wanted), columns(centred, centred), columns(wanted, wanted)
    yield "nrc2_cka", product(crossed, crossed) / (norm(own) * norm(of_targets))
    angles = singular_values(gram(axes, [v for _, v in singular_pairs(weight)[:count]]))
    yield "nrc3_alignment", mp.fsum(angles) / len(angles)
    explained = mp.fsum(
        square([mp.fdot(v, column) / s for column in zip(*crossed, strict=True)]) for s, v in pairs
    )
    total = mp.fsum(map(square, wanted))
    yield "nrc4_linear_mse", 1 - explained / total
    made = [[mp.fdot(row, h) + b for row, b in zip(weight, layer.bias, strict=True)] for h in features]
    yield "relative_mse", mp.fsum(square(minus(f, y)) for f, y in zip(made, targets, strict=True)) / total
    ratios = []
    for h in features:
        _, first, second = sorted(length(minus(h, other)) for other in features)[:3]
        ratios.append(mp.log(second / first))
    ratios.sort()
    kept = len(ratios) * 9 // 10
    heights = [-mp.log(1 - mpf(i) / len(ratios)) for i in range(1, kept + 1)]
    yield "intrinsic_dimension", mp.fdot(ratios[:kept], heights) / square(ratios[:kept])


def outside(features: Matrix, axes: Matrix) -> mpf:
    """Mean share of |h|^2 off orthonormal axes."""
    return mp.fsum(1 - mp.fsum(mp.fdot(v, h) ** 2 for v in axes) / square(h) for h in features) / len(
        features
    )


def columns(first: Matrix, second: Matrix) -> Matrix:
    """A^T B."""
    return gram([list(c) for c in zip(*first, strict=True)], [list(c) for c in zip(*second, strict=True)])


def of_all_tokens(layer: Tokens) -> Iterator[tuple[str, mpf]]:
    means = [average(tokens) for tokens in layer.features]
    pairs = zip(layer.features, means, strict=True)
    spread = average([[mp.fsum(square(minus(h, m)) for h in tokens) / len(tokens)] for tokens, m in pairs])[0]
    own = Classes(means, layer.labels)
    yield "nc1_tokens_of_sample", ratio(spread, own.between)
    yield "nc1_tokens_of_class", ratio(spread + own.within, own.between)


def of_held_out(test: Classes, train: Classes) -> Iterator[tuple[str, mpf]]:
    pairs = list(zip(test.features, test.labels, strict=True))
    nearest = zip(test.features, nearest_means(train, test.features), strict=True)
    weak = mp.fsum(square(minus(h, train.means[k])) for h, k in nearest) / len(pairs)
    strong = mp.fsum(square(minus(h, train.means[y])) for h, y in pairs) / len(pairs)
    yield "weak_test_collapse", ratio(weak, train.between)
    yield "strong_test_collapse", ratio(strong, train.between)


def of_weights(weight: Matrix) -> Iterator[tuple[str, mpf]]:
    total = square([mp.fsum(column) for column in zip(*weight, strict=True)])
    size = mp.fsum(map(square, weight))
    yield "nc0_row_sum", total / len(weight)
    yield "nc0_relative", total / (len(weight) * size) if size else NAN
    many = len(weight) > len(weight[0]) + 1
    inner = [] if many else gram(weight, weight)
    identity = [[mpf(i == j) for j in range(len(inner))] for i in range(len(inner))]
    yield "nc2_etf", NAN if many else distance_to_ray(inner, frame(len(weight)))
    yield "nc2_identity", NAN if many else distance_to_ray(inner, identity)
    yield from of_vectors("weights", weight)
    if many:
        rounding = max(len(weight), len(weight[0])) * EPS
        yield from of_many_directions("weights", weight, [rounding] * len(weight))
    yield from spectrum("weights", weight)


def of_vectors(name: str, vectors: Matrix) -> Iterator[tuple[str, mpf]]:
    """Spread of the lengths, and of the angles about -1/(K-1)."""
    lengths = [length(v) for v in vectors]
    mean, spread = deviation(lengths)
    yield f"nc2_equinorm_{name}", spread / mean if mean else NAN
    many = len(vectors) > len(vectors[0]) + 1
    pairs = [] if many else list(combinations(vectors, 2))
    gaps = [abs(cosine(v, w) + mpf(1) / (len(vectors) - 1)) for v, w in pairs]
    yield f"nc2_equiangular_{name}", NAN if many else mp.fsum(gaps) / len(gaps)


def of_many_directions(name: str, vectors: Matrix, slack: Vector) -> Iterator[tuple[str, mpf]]:
    """GNC2: mean and standard deviation over pairs of log(1/distance), the largest cosine, interference."""
    energy = spread = largest = interference = margin = NAN
    if all(map(square, vectors)):
        margin = mpf(0)
        pairs = direction_pairs(vectors, slack)
        energy = spread = INF
        largest = mpf(1)
        if pairs is not None:
            energy, spread = deviation([-mp.log(apart) for apart, _ in pairs])
            largest = max(cos for _, cos in pairs)
            simplex = mpf(1) / (len(vectors) - 1)
            interference = deviation([abs(cos + simplex) for _, cos in pairs])[0]
            margin = min(map(hull_distance, one_against_rest(vectors))) if len(vectors) <= MOST else NAN
        elif len(vectors) > MOST:
            margin = NAN
    yield f"gnc2_energy_{name}", energy
    yield f"gnc2_spread_{name}", spread
    yield f"gnc2_cosine_{name}", largest
    yield f"gnc2_interference_{name}", interference
    yield f"gnc2_margin_{name}", margin
    yield f"gnc2_code_{name}", 1 - margin / code_margin(len(vectors), len(vectors[0]))


def code_margin(classes: int, width: int) -> mpf:
    """The margin of the regular polygon, of vectors along both ends of axes, or none that is known."""
    if width == 2:
        return 1 - mp.cos(2 * mp.pi / classes)
    return mpf(1) if classes <= 2 * width else NAN


def one_against_rest(vectors: Matrix) -> Iterator[Matrix]:
    """The directions of all others less that of each one."""
    units = [unit(v) for v in vectors]
    for k, own in enumerate(units):
        yield [minus(other, own) for j, other in enumerate(units) if j != k]


def hull_distance(points: Matrix) -> mpf:
    """Least length in the convex hull of points, by Wolfe's algorithm."""
    tiny = mpf(10) ** (-mp.dps // 2)
    used = [min(range(len(points)), key=lambda j: square(points[j]))]
    shares = [mpf(1)]
    while True:
        nearest = [mp.fdot(shares, [points[j][i] for j in used]) for i in range(len(points[0]))]
        leads = [mp.fdot(nearest, point) for point in points]
        next_one = min(range(len(points)), key=lambda j: leads[j])
        if square(nearest) - leads[next_one] <= tiny:
            return length(nearest)
        used, shares = [*used, next_one], [*shares, mpf(0)]
        while True:
            size = len(used)
            border = [[mpf(0)] + [mpf(1)] * size]
            border += [[mpf(1)] + [mp.fdot(points[i], points[j]) for j in used] for i in used]
            wanted = list(mp.lu_solve(mp.matrix(border), mp.matrix([1] + [0] * size)))[1:]
            if min(wanted) > tiny:
                shares = wanted
                break
            step = min(a / (a - b) for a, b in zip(shares, wanted, strict=True) if b <= tiny)
            mixed = [a + step * (b - a) for a, b in zip(shares, wanted, strict=True)]
            kept = [(j, share) for j, share in zip(used, mixed, strict=True) if share > tiny]
            used, shares = [j for j, _ in kept], [share for _, share in kept]


def uniform_duality(weight: Matrix, centred: Matrix) -> Iterator[tuple[str, mpf]]:
    """UNC3: mean and standard deviation over classes of the cosine of a row and its centred mean."""
    found = [cosine(row, mean) for row, mean in zip(weight, centred, strict=True)]
    mean, spread = deviation(found)
    yield "unc3_cosine", mean
    yield "unc3_spread", spread


def deviation(values: Sequence[mpf]) -> tuple[mpf, mpf]:
    """Mean and standard deviation."""
    mean = mp.fsum(values) / len(values)
    return mean, mp.sqrt(mp.fsum((x - mean) ** 2 for x in values) / len(values))


def spectrum(name: str, matrix: Matrix) -> Iterator[tuple[str, mpf]]:
    values = singular_values(matrix)
    total = mp.fsum(values)
    yield f"rank_{name}", mpf(sum(s > RANK_TOLERANCE * values[0] for s in values))
    yield f"stable_rank_{name}", mp.fsum(s**2 for s in values) / values[0] ** 2 if total else NAN
    shares = [s / total for s in values if s] if total else []
    yield f"effective_rank_{name}", mp.exp(-mp.fsum(p * mp.log(p) for p in shares)) if total else NAN
    for place, value in enumerate(values, 1):
        yield f"singular_{name}_{place:03d}", value


def between_directions(classes: Classes) -> list[tuple[mpf, Vector]]:
    """Singular values and right singular vectors of the centred means; above the cutoff, at most K-1."""
    pairs = [(s, v) for s, v in singular_pairs(classes.centred) if s > classes.cutoff]
    return pairs[: classes.count - 1]


def nc1_pinv(classes: Classes, directions: list[tuple[mpf, Vector]]) -> mpf:
    """tr(Sigma_W Sigma_B^+)/K with Sigma_B^+ = K sum_j v_j v_j^T/s_j^2."""
    residuals = [minus(h, classes.means[y]) for h, y in zip(classes.features, classes.labels, strict=True)]
    return mp.fsum((mp.fdot(v, r) / s) ** 2 for s, v in directions for r in residuals) / len(residuals)


def condition(matrix: Matrix) -> mpf:
    values = singular_values(matrix)
    if values[0] == 0:
        return NAN
    return INF if values[-1] <= max(len(matrix), len(matrix[0])) * EPS * values[0] else values[0] / values[-1]


def frame(classes: int) -> Matrix:
    """E = I - 11^T/K."""
    return [[mpf(i == j) - mpf(1) / classes for j in range(classes)] for i in range(classes)]


def distance_to_ray(inner: Matrix, target: Matrix) -> mpf:
    """min over c >= 0 of |A - c T|/|A|."""
    if not norm(inner):
        return NAN
    best = max(mpf(0), product(inner, target) / product(target, target))
    pairs = zip(inner, target, strict=True)
    return norm([[a - best * t for a, t in zip(*rows, strict=True)] for rows in pairs]) / norm(inner)


def distance_to_frame(inner: Matrix) -> mpf:
    """|A/|A| - E/sqrt(K-1)|; NaN for A = 0."""
    size, root = norm(inner), mp.sqrt(len(inner) - 1)
    if not size:
        return NAN
    pairs = zip(inner, frame(len(inner)), strict=True)
    return norm([[a / size - e / root for a, e in zip(*rows, strict=True)] for rows in pairs])


def singular_values(matrix: Matrix) -> Vector:
    """min(m, n) of them, largest first."""
    return [s for s, _ in singular_pairs(matrix)]


def singular_pairs(matrix: Matrix) -> list[tuple[mpf, Vector]]:
    """Singular values, largest first, with right singular vectors (0 where the value is)."""
    wide = len(matrix) < len(matrix[0])
    rows = matrix if wide else [list(column) for column in zip(*matrix, strict=True)]
    size = max(map(length, rows))
    if not size:
        return [(mpf(0), [mpf(0)] * len(matrix[0])) for _ in rows]
    rows = [[x / size for x in row] for row in rows]
    squares, vectors = mp.eigsy(mp.matrix(gram(rows, rows)))
    found = []
    for j in reversed(range(len(rows))):
        u = list(vectors[:, j])
        image = [mp.fdot(u, column) for column in zip(*rows, strict=True)]  # s times a unit vector
        value = length(image)
        negligible = value < mpf(10) ** (-mp.dps // 3)
        vector = u if not wide else image if negligible else [x / value for x in image]
        found.append((mpf(0) if negligible else value * size, vector))
    assert squares[0] <= squares[len(rows) - 1]
    return found


def share(answers: Iterator[bool]) -> mpf:
    every = list(answers)
    return mpf(sum(every)) / len(every)


def ratio(numerator: mpf, denominator: mpf) -> mpf:
    return numerator / denominator if denominator else INF


def cosine(a: Vector, b: Vector) -> mpf:
    lengths = length(a) * length(b)
    return mp.fdot(a, b) / lengths if lengths else NAN


def unit(vector: Vector) -> Vector | None:
    size = length(vector)
    return [x / size for x in vector] if size else None


def gram(first: Matrix, second: Sequence[Vector | None]) -> Matrix:
    return [[mp.fdot(a, b) for b in second] for a in first]


def product(a: Matrix, b: Matrix) -> mpf:
    return mp.fsum(mp.fdot(x, y) for x, y in zip(a, b, strict=True))


def norm(matrix: Matrix) -> mpf:
    return mp.sqrt(product(matrix, matrix))


def average(rows: Matrix) -> Vector:
    return [mp.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def minus(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


def square(vector: Vector) -> mpf:
    return mp.fdot(vector, vector)


def length(vector: Vector) -> mpf:
    return mp.sqrt(square(vector))


def read_layer(arrays: Mapping[str, np.ndarray]) -> Layer | Vectors | Tokens:
    """The arrays of a file as exact numbers."""
    if arrays["features"].ndim == 3:
        return Tokens([[exact(h) for h in rows] for rows in arrays["features"]], arrays["labels"].tolist())

    def matrix(name: str) -> Matrix | None:
        return [exact(row) for row in arrays[name]] if name in arrays else None

    features = matrix("features")
    assert features is not None
    if "targets" in arrays:
        targets, weight = matrix("targets"), matrix("weight")
        assert targets is not None
        assert weight is not None
        return Vectors(features, targets, weight, exact(arrays["bias"]))
    return Layer(
        features,
        arrays["labels"].tolist(),
        matrix("weight"),
        exact(arrays["bias"]) if "bias" in arrays else None,
        matrix("test_features"),
        arrays["test_labels"].tolist() if "test_labels" in arrays else None,
    )


def exact(numbers: np.ndarray) -> Vector:
    return [mpf(float(x)) for x in numbers]
