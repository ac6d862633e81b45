"""The metrics of collapse a second time: printed formulas in NumPy float64, by loops, np.outer and pinv."""

import numpy as np

Array = np.ndarray


def class_means(features: Array, labels: Array) -> Array:
    return np.stack([np.mean(features[labels == k], axis=0) for k in range(labels.max() + 1)])


def covariances(features: Array, labels: Array) -> tuple[Array, Array]:
    """Sigma_W and Sigma_B, by outer products."""
    means = class_means(features, labels)
    centre = means.mean(0)
    within = sum(np.outer(h - means[y], h - means[y]) for h, y in zip(features, labels, strict=True))
    between = sum(np.outer(m - centre, m - centre) for m in means)
    return within / len(labels), between / len(means)


def all_metrics(features: Array, labels: Array, weight: Array, bias: Array) -> dict[str, float]:
    """Every metric of one split whose own means are the train means, for non-degenerate input."""
    means = class_means(features, labels)
    classes = len(means)
    within, between = covariances(features, labels)
    inverse = np.linalg.pinv(between, rcond=1e-10)
    centred = means - means.mean(0)
    directions = np.stack([m / np.linalg.norm(m) for m in centred])
    values = {
        "nc1_trace_ratio": np.trace(within) / np.trace(between),
        "nc1_pinv": np.trace(within @ inverse) / classes,
        "nc1_pinv_rank": np.linalg.matrix_rank(between, tol=1e-10),
        "dnc1_trace_pinv": np.trace(within) / np.trace(inverse),
        "tcv": np.trace(within),
        "cdnv": cdnv(features, labels),
        "nc2_means": to_etf(directions @ directions.T),
        "nc3_duality": to_etf(weight @ directions.T),
        "nc2_condition": np.linalg.cond(means),
        "nc3_cosine": 1 - np.mean([cosine(h, weight[y]) for h, y in zip(features, labels, strict=True)]),
        "ncc_error": np.mean([nearest(h, means) != y for h, y in zip(features, labels, strict=True)]),
        "nc4_mismatch": np.mean([nearest(h, means) != np.argmax(weight @ h + bias) for h in features]),
    }
    margins = sorted(margin(weight @ h + bias, y) for h, y in zip(features, labels, strict=True))
    values |= {"margin_min": margins[0], "margin_mean": np.mean(margins)}
    values |= {
        f"margin_p{percent:02d}": np.quantile(margins, percent / 100, method="inverted_cdf")
        for percent in (5, 50, 95)
    }
    return values | of_vectors("means", centred) | spectrum("means", means)


def weight_metrics(weight: Array) -> dict[str, float]:
    total = sum(weight)
    sums = {
        "nc0_row_sum": total @ total / len(weight),
        "nc0_relative": total @ total / (len(weight) * np.sum(weight**2)),
    }
    return sums | of_vectors("weights", weight) | spectrum("weights", weight)


def of_vectors(name: str, vectors: Array) -> dict[str, float]:
    lengths = [np.linalg.norm(v) for v in vectors]
    classes = len(vectors)
    gaps = [
        abs(cosine(vectors[i], vectors[j]) + 1 / (classes - 1))
        for i in range(classes)
        for j in range(classes)
        if i != j
    ]
    return {
        f"nc2_equinorm_{name}": np.std(lengths) / np.mean(lengths),
        f"nc2_equiangular_{name}": np.mean(gaps),
    }


def of_directions(name: str, vectors: Array) -> dict[str, float]:
    """GNC2, pair by pair."""
    units = [v / np.linalg.norm(v) for v in vectors]
    pairs = [(units[i], units[j]) for i in range(len(units)) for j in range(i)]
    logs = [np.log(1 / np.linalg.norm(a - b)) for a, b in pairs]
    return {
        f"gnc2_energy_{name}": np.mean(logs),
        f"gnc2_spread_{name}": np.std(logs),
        f"gnc2_cosine_{name}": max(cosine(a, b) for a, b in pairs),
        f"gnc2_interference_{name}": np.mean([abs(cosine(a, b) + 1 / (len(units) - 1)) for a, b in pairs]),
    }


def uniform_duality(weight: Array, centred: Array) -> dict[str, float]:
    """UNC3."""
    cosines = [cosine(w, m) for w, m in zip(weight, centred, strict=True)]
    return {"unc3_cosine": np.mean(cosines), "unc3_spread": np.std(cosines)}


def spectrum(name: str, matrix: Array) -> dict[str, float]:
    """Singular values as roots of eigenvalues of the smaller Gram matrix."""
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0))
    shares = values[values > 0] / values.sum()
    return {
        f"rank_{name}": np.linalg.matrix_rank(matrix, rtol=1e-3),
        f"stable_rank_{name}": np.linalg.norm(matrix) ** 2 / np.linalg.norm(matrix, 2) ** 2,
        f"effective_rank_{name}": np.exp(-sum(p * np.log(p) for p in shares)),
    } | {f"singular_{name}_{place:03d}": value for place, value in enumerate(values, 1)}


def held_out_collapse(train: Array, train_labels: Array, test: Array, labels: Array) -> tuple[float, float]:
    """weak_test_collapse and strong_test_collapse."""
    means = class_means(train, train_labels)
    between = np.trace(covariances(train, train_labels)[1])
    weak = np.mean([min(np.sum((h - m) ** 2) for m in means) for h in test])
    strong = np.mean([np.sum((h - means[y]) ** 2) for h, y in zip(test, labels, strict=True)])
    return weak / between, strong / between


def cdnv(features: Array, labels: Array) -> float:
    return float(np.mean(pair_cdnv(features, labels)))


def cdnv_log(features: Array, labels: Array) -> float:
    return float(np.mean(np.log(pair_cdnv(features, labels))))


def pair_cdnv(features: Array, labels: Array) -> list[float]:
    means = class_means(features, labels)
    variances = [np.mean([np.sum((h - m) ** 2) for h in features[labels == k]]) for k, m in enumerate(means)]
    return [
        (variances[i] + variances[j]) / (2 * np.sum((means[i] - means[j]) ** 2))
        for i in range(len(means))
        for j in range(i)
    ]


def to_etf(gram: Array) -> float:
    classes = len(gram)
    target = (np.eye(classes) - np.ones((classes, classes)) / classes) / np.sqrt(classes - 1)
    return float(np.linalg.norm(gram / np.linalg.norm(gram) - target))


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def nearest(sample: Array, means: Array) -> int:
    return int(np.argmin([np.linalg.norm(sample - m) for m in means]))


def margin(logits: Array, label: int) -> float:
    return float(logits[label] - max(f for k, f in enumerate(logits) if k != label))
