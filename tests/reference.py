"""An independent second implementation: S25's definitions in NumPy float64, written with columns as samples.

Nothing of ncpipe's models is used; only parameters, by name, come from there.
"""

import numpy as np

Parameters = dict[str, np.ndarray]


def layer_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """LN of every column of x (d, n)."""
    out = np.empty_like(x)
    for j in range(x.shape[1]):
        column = x[:, j]
        mean = sum(column) / len(column)
        variance = sum((entry - mean) ** 2 for entry in column) / len(column)
        out[:, j] = (column - mean) / np.sqrt(variance + eps)
    return out


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.0)


def mlp(p: Parameters, prefix: str, x: np.ndarray) -> np.ndarray:
    """sigma(W x + b), or W_2 sigma(W_1 x + b_1) + b_2."""
    if f"{prefix}lin.weight" in p:
        return relu(p[f"{prefix}lin.weight"] @ x + p[f"{prefix}lin.bias"][:, None])
    hidden = relu(p[f"{prefix}lin1.weight"] @ x + p[f"{prefix}lin1.bias"][:, None])
    return p[f"{prefix}lin2.weight"] @ hidden + p[f"{prefix}lin2.bias"][:, None]


def attention(p: Parameters, prefix: str, z: np.ndarray) -> np.ndarray:
    """W_VO Z A(Z) or W_O W_V Z A(Z) for one sample z (d, C), without the residual."""
    if f"{prefix}qk.weight" in p:
        scores, values = z.T @ p[f"{prefix}qk.weight"] @ z, p[f"{prefix}vo.weight"] @ z
    else:
        scores = z.T @ p[f"{prefix}k.weight"].T @ p[f"{prefix}q.weight"] @ z
        values = p[f"{prefix}o.weight"] @ p[f"{prefix}v.weight"] @ z
    scores = scores / np.sqrt(len(z))
    weights = np.zeros_like(scores)
    for column in range(scores.shape[1]):  # the mask leaves rows 0..column
        allowed = np.exp(scores[: column + 1, column])
        weights[: column + 1, column] = allowed / allowed.sum()
    return values @ weights


def resnet(p: Parameters, samples: np.ndarray, depth: int, pre_norm: bool, eps: float) -> np.ndarray:
    """Logits (N, K) of samples (N, D) [S25 Def. 3.1, B.1]."""
    x = layer_norm(p["lin0.weight"] @ samples.T + p["lin0.bias"][:, None], eps)
    for block in range(depth - 1):
        prefix = f"blocks.{block}."
        x = x + mlp(p, prefix, layer_norm(x, eps)) if pre_norm else layer_norm(x + mlp(p, prefix, x), eps)
    return last_layer(p, layer_norm(x, eps) if pre_norm else x)


def transformer(p: Parameters, sample: np.ndarray, depth: int, pre_norm: bool, eps: float) -> np.ndarray:
    """Logits (K,) of one sample without padding: token ids (C,) or patches (C, size) [S25 Def. 3.2, B.2]."""
    if sample.ndim == 1:
        embedded = np.stack([p["embedding.tokens"][token] for token in sample], axis=1)
    else:
        embedded = p["embedding.patches.weight"] @ sample.T
    z = embedded + p["embedding.positions"][: len(sample)].T
    if pre_norm:
        z = layer_norm(z, eps)
    for block in range(depth):
        prefix = f"blocks.{block}."
        if pre_norm:
            z = z + attention(p, f"{prefix}attention.", layer_norm(z, eps))
            z = z + mlp(p, f"{prefix}mlp.", layer_norm(z, eps))
        else:
            z = layer_norm(z, eps)
            z = z + attention(p, f"{prefix}attention.", z)
            z = layer_norm(z, eps)
            z = z + mlp(p, f"{prefix}mlp.", z)
    return last_layer(p, layer_norm(z[:, -1:], eps))[0]


def last_layer(p: Parameters, h: np.ndarray) -> np.ndarray:
    logits = p["last.weight"] @ h
    if "last.bias" in p:
        logits = logits + p["last.bias"][:, None]
    return logits.T
