"""Explain what the report speaks of: papers, networks, properties, symbols and marks, one sentence each."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """Holds a paper by the short name that claims give it."""

    name: str
    authors: str
    title: str
    year: int
    link: str


PAPERS = (
    Paper(
        "S25",
        "Súkeník, Lampert, Mondelli",
        "Neural collapse is globally optimal in deep regularized ResNets and transformers",
        2025,
        "https://arxiv.org/abs/2505.15239",
    ),
    Paper(
        "S24",
        "Súkeník, Mondelli, Lampert",
        "Neural collapse versus low-rank bias: is deep neural collapse really optimal?",
        2024,
        "https://arxiv.org/abs/2405.14468",
    ),
    Paper(
        "K23",
        "Kothapalli",
        "Neural collapse: a review on modelling principles and generalization",
        2023,
        "https://openreview.net/forum?id=QTXocpAP9p",
    ),
)

NEURAL_COLLAPSE = (
    "Neural collapse (NC): when a classifier is trained beyond zero training error, its last features take a "
    "simple shape. NC1 to NC4 are four properties of this shape, each measured as a distance from it, so 0 "
    "is full collapse and a metric improves where it falls."
)

# What each property says, and how the page measures its distance.
PROPERTIES: Mapping[str, tuple[str, str]] = {
    "NC1": (
        "All features of a class are equal to their class mean.",
        "the variance within classes over the variance between class means",
    ),
    "NC2": (
        "The class means, and with them the rows of the classifier W, form a simplex ETF: equal lengths, and "
        "equal and largest possible angles.",
        "the relative distance of W Wᵀ from a simplex ETF; for the squared error without bias, from "
        "orthogonal rows",
    ),
    "NC3": (
        "Each row of the classifier points along its class mean.",
        "1 less the mean cosine of a feature and the row of its class",
    ),
    "NC4": (
        "The classifier picks the class of the nearest mean.",
        "the share of samples for which it does not",
    ),
}

NETWORKS: Mapping[str, str] = {
    "L-RN1": "residual MLP, one linear map a block",
    "L-RN2": "residual MLP, two linear maps a block",
    "L-T11": "transformer, one linear map in each MLP, attention with one score and one value matrix",
    "L-T12": "transformer, two linear maps in each MLP, attention with one score and one value matrix",
    "L-T21": (
        "transformer, one linear map in each MLP, attention with two matrices for scores and two for values"
    ),
    "L-T22": (
        "transformer, two linear maps in each MLP, attention with two matrices for scores and two for values"
    ),
    "mlp": "multilayer perceptron with batch norm",
    "resnet_cifar": "convolutional ResNet for CIFAR-10 (He et al. 2016)",
    "conv_net": "small convolutional network",
    "dufm": "deep unconstrained features model, linear layers and ReLU on features that are free variables",
}
DATA: Mapping[str, str] = {
    "digits": "scikit-learn's 8 × 8 images of handwritten digits, ten classes",
    "mnist": "28 × 28 images of handwritten digits, ten classes",
    "cifar10": "32 × 32 colour photographs, ten classes",
    "imdb": "film reviews, positive or negative",
    "gaussian_mixture": "points with normal noise around random directions, one for each class",
    "teacher": "points with a normal distribution, and vectors that a random network makes of them",
}
PRE_NORM = "layer norm inside each branch (pre-LN)"

# Words of the page's headings and sentences, in the order of the section Words.
WORDS: Mapping[str, str] = {
    "feature": "what a sample is to the network just before the last layer: a vector of d numbers",
    "class mean": "the mean of the features of one class",
    "W": "the matrix of the last layer, the classifier; it has one row for each class",
    "ETF": (
        "equiangular tight frame. A simplex ETF of K vectors has equal lengths, and every two meet at the "
        "same angle, the largest that K vectors can share: its cosine is −1/(K−1)"
    ),
    "K": "the number of classes",
    "L": "the depth of a network: S25's residual networks have L − 1 residual blocks, its transformers L",
    "λ": (
        "the strength of the penalty λ/2 · (sum of squared weights), which is part of the loss; λ_L that of "
        "the last layer"
    ),
    "seed": (
        "the number that fixes a run's random start; runs that differ in the seed alone show the effect of "
        "chance"
    ),
    "run": "one trained network: an experiment at one depth and seed",
    "experiment": "a data set, a network and a training recipe, by their name in params.yaml",
    "converged": (
        "the run ended with finite numbers, a training error within its limit and a loss that had stopped "
        "moving"
    ),
    "runs used": (
        "how many runs enter a power: those that fit the data, or converged if `convergence.use` asks for "
        "it, and whose value has a logarithm"
    ),
    "loss gap": (
        "the loss with its penalty, less the least value that the theory of S25 allows for this number of "
        "classes, width and penalty of the last layer: how far training ended from the optimum, which is 0"
    ),
    "loss": (
        "what training lowers: the error on training samples as cross-entropy or squares, plus the penalty"
    ),
    "fit": "the loss without its penalty",
    "inner penalty": "the penalty of all layers but the last, a part of the loss gap",
    "last penalty": "the penalty of the last layer",
    "loss moved": "by which share of its last value the loss moved at the end of training",
    "gradient": "the norm of the gradient of the loss at the end of training",
    "train error": "the share of training samples that are classified wrongly",
    "test error": "the share of test samples that are classified wrongly",
    "reason": "why a run did not converge",
    "diverged at epoch": "when a run's loss stopped being a finite number",
    "optimum": (
        "the least loss of the features model, in which every feature may be chosen freely at a fixed "
        "length; no network with layer norm can end below it"
    ),
    "power": (
        "L^-0.5 means: the metric is proportional to 1/√L. It is fitted by least squares through the "
        "logarithms of all used runs; a power of −1 halves the metric when the depth doubles"
    ),
    "[ , ]": (
        "the interval of a number, 95 % unless stated, from the spread over seeds; if it has 0, the sign is "
        "not clear"
    ),
    "improves": "becomes smaller with depth, so nearer to collapse; worsens is the opposite",
    "p": "the p-value of a test; below 0.05 the tested statement is rejected",
    "p of a line": (
        "the p-value of the test that the logarithms lie on a straight line; small values reject a power"
    ),
    "Spearman's rho": "a rank correlation from −1 to 1; −1 means that the metric falls at every step",
    "p of rho": "the p-value of the test that there is no rank correlation",
    "split": "what a metric is measured on: training samples, test samples, or the weights alone",
    "left out": "values that enter no power, with the reason",
    "effective depth": "the first layer whose class means already classify the training samples",
    "metric": "a measured quantity; point at a name for its meaning",
}

MARKS: Mapping[str, str] = {
    "↓ ↑ →": "falls, rises, shows no clear change: the interval is below 0, above 0, or has it",
    "large dot with bar": "mean over seeds ± 1 standard deviation of the logarithms",
    "small dot": "one run; hollow if it did not converge and enters nothing",
    "dashed line": "the fitted power; dotted and marked † where the test rejects a straight line",
    "grey triangle": (
        "how fast a bound of S25 falls, which holds for global optima: not a prediction for training, and no "
        "trained network contradicts it by a smaller slope"
    ),
    "band": "± 1 standard deviation over seeds",
}

VERDICTS: Mapping[str, str] = {
    "agrees": "the whole interval, or the test, is as the sentence says",
    "disagrees": (
        "no part of the interval is; red where this contradicts a paper, not where the sentence is ours"
    ),
    "undecided": "the interval has values of both sides, or there are too few runs",
    "does not apply": (
        "the sentence is about runs that this sweep lacks, or about optima that training did not reach"
    ),
}


def meaning(name: str) -> str:
    """Return a word's or property's sentence, for a heading to show when pointed at; empty for others."""
    return PROPERTIES[name][0] if name in PROPERTIES else WORDS.get(name, "")


def network_words(architecture: str, norm: str) -> str:
    """Return what a network is, as `residual MLP, one linear map a block`; a study's own by its name."""
    words = NETWORKS.get(architecture, architecture)
    return f"{words}, {PRE_NORM}" if norm == "pre" else words
