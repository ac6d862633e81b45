"""The numbers of theory that a claim can call by name, and their evaluation."""

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ncpipe.claims import features_models, flow_models, low_rank, rank_bounds
from ncpipe.claims.evidence import Number
from ncpipe.claims.ledger import Theory
from ncpipe.errors import InputError, cut, shown, word
from ncpipe.papers.field import calls as field
from ncpipe.records import check, suggest


class Call(NamedTuple):
    """A number by a closed form or by the run of a model, and the same number found in another way."""

    number: Callable[..., float]
    twin: Callable[..., float] | None = None


CALLS = {
    "gufm.value": Call(features_models.gufm_value, features_models.gufm_value_found),
    "gufm.collapse": Call(features_models.gufm_collapse),
    "gufm.rescaled": Call(features_models.gufm_rescaled),
    "ufm.value": Call(features_models.ufm_value, features_models.ufm_value_found),
    "smoothing.value": Call(features_models.smoothing_value, features_models.smoothing_value_found),
    "imbalance.threshold": Call(features_models.minority_threshold, features_models.minority_threshold_found),
    "imbalance.largest_ratio": Call(features_models.largest_ratio, features_models.largest_ratio_found),
    "imbalance.fixed_etf": Call(features_models.fixed_etf_collapse),
    "supcon.value": Call(features_models.supcon_value, features_models.supcon_value_found),
    "two_linear.logit": Call(features_models.two_linear_logit, features_models.two_linear_logit_found),
    "two_linear.frame": Call(features_models.two_linear_frame),
    "two_linear.jump": Call(features_models.two_linear_jump),
    "batch_norm.value": Call(features_models.batch_norm_value, features_models.batch_norm_value_found),
    "orthoplex.value": Call(features_models.orthoplex_value, features_models.orthoplex_value_found),
    "orthoplex.cosines": Call(features_models.orthoplex_cosines),
    "flow.scale": Call(flow_models.scale, flow_models.scale_found),
    "flow.error_slope": Call(flow_models.error_slope),
    "flow.loss_at_rest": Call(flow_models.loss_at_rest),
    "flow.mse_over_se": Call(flow_models.mse_over_se),
    "flow.margin_share": Call(flow_models.margin_share),
    "flow.margin_rate": Call(flow_models.margin_rate),
    "flow.within_left": Call(flow_models.within_left),
    "flow.balance_left": Call(flow_models.balance_left, flow_models.balance_left_found),
    "central_path.rate": Call(flow_models.central_path_rate),
    "central_path.spread": Call(flow_models.central_path_spread),
    "locally_elastic.etf_rate": Call(flow_models.etf_rate, flow_models.etf_rate_found),
    "locally_elastic.etf_error": Call(flow_models.etf_error),
    "locally_elastic.separation": Call(flow_models.separation),
    "locally_elastic.separable_pairs": Call(flow_models.separable_pairs),
    "rank_bound.share": Call(rank_bounds.largest_share),
    "rank_bound.distance": Call(rank_bounds.largest_distance),
    "rank_bound.decay_slope": Call(rank_bounds.decay_slope),
    "dufm.srg_over_dnc": Call(low_rank.srg_over_dnc),
    "dufm.small_decay_ratio": Call(low_rank.small_decay_ratio),
    "dufm.ratio_slope": Call(low_rank.ratio_slope),
    "dufm.dnc_threshold": Call(low_rank.dnc_threshold),
    "dufm.best_minus": Call(low_rank.best_minus),
    "dufm.built_over_closed": Call(low_rank.built_over_closed),
    "dufm.descended_over_srg": Call(low_rank.descended_over_srg),
    **{name: Call(*functions) for name, functions in field.CALLS.items()},
}


def evaluate(claim: Theory) -> Number:
    """Return the number of a call, an exact one; with `against`, that number is its `target`.

    Raises InputError, which begins with the claim's id, for an unknown call, a missing, unknown or bad
    argument, arguments outside the theory's range, and `numerical` where a call has no twin.
    """
    call, arguments = _checked(claim)
    try:
        value = call.number(**arguments)
        if claim.against is None:
            return Number(value, value, value)
        other = call.twin(**arguments) if claim.against == "numerical" and call.twin else claim.against
    except InputError as error:
        raise InputError(cut(f"claims.yaml: {claim.id}.args: {error}")) from None
    assert isinstance(other, float)
    return Number(value, value, value, target=other)


def check_calls(claims: Iterable[Theory]) -> None:
    """Nothing of a file is evaluated, which may take minutes, before all of it is known to be right.

    Raises InputError with a line for each mistake, but for arguments that only the theory can refuse.
    """
    mistakes = []
    for claim in claims:
        try:
            _checked(claim)
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:
        raise InputError("\n".join(mistakes))


def _checked(claim: Theory) -> tuple[Call, dict[str, Any]]:
    """The call of a claim and its arguments."""
    if claim.call not in CALLS:
        raise InputError(
            cut(f"claims.yaml: {claim.id}.call: unknown {shown(claim.call)}; {_near(claim.call)}")
        )
    call = CALLS[claim.call]
    if claim.against == "numerical" and call.twin is None:
        raise InputError(
            f"claims.yaml: {claim.id}.against: {claim.call} has no numerical twin; give a number"
        )
    return call, _arguments(claim, call.number)


def _arguments(claim: Theory, function: Callable[..., float]) -> dict[str, Any]:
    """Checked by the function's annotations."""
    kinds = typing.get_type_hints(function, include_extras=True)
    kinds.pop("return")
    mistakes = [
        f"{claim.id}.args.{word(name)}: unknown; {suggest(name, kinds)}"
        for name in claim.args
        if name not in kinds
    ]
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in claim.args:
            found[name], wrong = check(kinds[name], claim.args[name], f"{claim.id}.args.{name}")
            mistakes += wrong
        elif parameter.default is inspect.Parameter.empty:
            mistakes.append(f"{claim.id}.args.{name}: missing; add it")
    if mistakes:
        raise InputError("\n".join(cut(f"claims.yaml: {line}") for line in mistakes))
    return found


def _near(name: str) -> str:
    return suggest(name, CALLS)


def calls_table() -> list[str]:
    """A line for each call, of docs/claims.md's table."""
    lines = []
    for name, call in CALLS.items():
        arguments = ", ".join(inspect.signature(call.number).parameters)
        said = " ".join((inspect.getdoc(call.number) or "").split("\n\n")[0].split())
        lines.append(
            f"| `{name}({arguments})` | {said.replace('|', chr(92) + '|')} | {'yes' if call.twin else ''} |"
        )
    return lines
