"""The gradient of a run's objective at its end, against differences of an independent implementation."""

import numpy as np
import pytest
import reference
import torch
from conftest import architecture, experiment, vector_data

from ncpipe.config.run import Run
from ncpipe.features import gradient
from ncpipe.features.forward import load_network
from ncpipe.models.build import build_model, input_shape

CPU = torch.device("cpu")


def naive_loss(parameters: reference.Parameters, data, run: Run, inner: float, last: float) -> float:
    """S25 eq. 7 and 11 by reference.py: mean loss and lambda/2 of all matrices but the first layer's."""
    spec = run.spec
    logits = reference.resnet(
        parameters, data.train.inputs.double().numpy(), run.depth, False, spec.model.layer_norm_eps
    )
    labels = data.train.labels.numpy()
    fit = (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]).mean()
    penalty = last / 2 * (parameters["last.weight"] ** 2).sum()
    for name, value in parameters.items():
        if name.startswith("blocks.") and name.endswith("weight"):
            penalty += inner / 2 * (value**2).sum()
    return float(fit + penalty)


def test_the_norm_is_that_of_all_differences() -> None:
    """One parameter at a time, by central differences; lambda over the depth, another in the last layer."""
    data = vector_data()
    model = architecture("L-RN1", "post", width=4, last_bias=True)
    penalty = {"rule": "over_depth", "value": 0.6, "last_layer": 0.05}
    run = Run("x", 3, 0, experiment(model=model, penalty=penalty))
    state = build_model(run.spec.model, input_shape(data, run.spec.model), 3, 3, 0).state_dict()
    network = load_network(run, state, data, CPU)
    found = gradient.gradient_norm(network, run, data, CPU)
    parameters = {name: tensor.double().numpy() for name, tensor in state.items()}
    square, step = 0.0, 1e-6
    for value in parameters.values():
        for place in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                value[place] += sign * step
                ends.append(naive_loss(parameters, data, run, 0.2, 0.05))
                value[place] -= sign * step
            square += ((ends[0] - ends[1]) / (2 * step)) ** 2
    assert found == pytest.approx(square**0.5, rel=1e-7)


def test_it_vanishes_where_nothing_pulls() -> None:
    """All weights 0: logits are equal, features 0, and no parameter can change that to first order."""
    data = vector_data()
    run = Run("x", 3, 0, experiment())
    state = build_model(run.spec.model, input_shape(data, run.spec.model), 3, 3, 0).state_dict()
    network = load_network(run, {name: 0 * value for name, value in state.items()}, data, CPU)
    assert gradient.gradient_norm(network, run, data, CPU) == 0
