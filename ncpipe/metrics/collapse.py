"""Neural-collapse metrics of features and last-layer weights [S25 Def. 3.4], in float64.

N  samples    K  classes    d  feature width
"""

import torch
from torch import Tensor

from ncpipe.errors import InputError
from ncpipe.metrics.geometry import simplex_etf_gram


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """mu_k = (1/n_k) sum_i h_ki, (K, d); features (N, d), labels (N,) in 0..K-1.

    Raises InputError that names an empty class.
    """
    counts = torch.bincount(labels, minlength=classes)
    if empty := torch.nonzero(counts == 0).flatten().tolist():
        raise InputError(f"class {empty[0]} has no samples; class means need at least one of each class")
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    return sums.index_add_(0, labels, features.double()) / counts.unsqueeze(1)


def nc1_trace_ratio(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W)/tr(Sigma_B), lower is more collapsed, 0 at collapse [S25 Def. 3.4 NC1].

    tr(Sigma_W) = 1/N sum |h_ki - mu_k|^2 and tr(Sigma_B) = 1/K sum |mu_k - mu_G|^2 with mu_G the mean of
    the class means; features (N, d). inf where all class means coincide.
    """
    means = class_means(features, labels, classes)
    within = (features.double() - means[labels]).square().sum() / len(labels)
    between = (means - means.mean(0)).square().sum() / classes
    return float("inf") if between == 0 else (within / between).item()


def nc2_etf(weight: Tensor) -> float:
    """min_{c >= 0} |W W^T - c E_K|_F/|W W^T|_F with E_K = I - 11^T/K; W (K, d) [S25 Def. 3.4 NC2A].

    In [0, 1]; 0 where the rows of W are a simplex ETF. NaN for W = 0.
    """
    return _distance_to_ray(weight, simplex_etf_gram(len(weight)))


def nc2_identity(weight: Tensor) -> float:
    """min_{c >= 0} |W W^T - c I_K|_F/|W W^T|_F; W (K, d) [S25 Def. 3.4 NC2B].

    In [0, 1]; 0 where the rows of W are orthogonal and of one length. NaN for W = 0.
    """
    return _distance_to_ray(weight, torch.eye(len(weight), dtype=torch.float64))


def nc3_cosine(features: Tensor, labels: Tensor, weight: Tensor) -> float:
    """1 - mean over samples of cos(h_ki, W_k); features (N, d), W (K, d) [S25 Def. 3.4 NC3].

    In [0, 2]; 0 where every feature points along its class's row of W. Computed as the mean of
    |h/|h| - W_k/|W_k||^2/2, which keeps its digits near 0. NaN where a feature or a row of W is 0.
    """
    directions = _unit(features.double())
    rows = _unit(weight.double())[labels]
    return ((directions - rows).square().sum(1) / 2).mean().item()


def _distance_to_ray(weight: Tensor, direction: Tensor) -> float:
    scaled = weight.double() / weight.abs().max().double()  # no square over- or underflows
    gram = scaled @ scaled.T
    direction = direction.to(gram.device)
    scale = ((gram * direction).sum() / direction.square().sum()).clamp(min=0)
    return ((gram - scale * direction).norm() / gram.norm()).item()


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True)
