"""Judge claims by their numbers: agrees, disagrees, undecided or does not apply.

`ncpipe.commands.claims` writes the tables and prints the lines of this module.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, get_args

import pandas as pd
from scipy import special

from ncpipe.claims.claim import ABSENT, Claim, RunClaim, Verdict
from ncpipe.claims.evidence import Answer, NoNumberError, Tables
from ncpipe.tables.rates import p_text

PLURALS = {"agrees": "agree", "disagrees": "disagree", ABSENT: "do not apply"}  # "undecided" has none
COLUMNS = [
    "id", "ref", "author", "statement", "about", "quantity", "expected", "verdict", "value", "low", "high",
    "p_value", "runs", "scale", "reason", "kind", "p_decision",
]  # fmt: skip


class Judged(NamedTuple):
    """Holds a claim with its number and verdict."""

    claim: Claim
    number: Answer
    verdict: Verdict


def answer(claim: Claim, tables: Tables | None = None) -> Answer:
    """Return the number that answers a claim, or why there is none (`missing`)."""
    try:
        return claim.answer(tables)
    except NoNumberError as why:
        return Answer(missing=str(why))


def judge(claim: Claim, number: Answer) -> Judged:
    """Return the claim with its verdict: `does not apply` without a number, else `Claim.decision`.

    An identity that does not agree `disagrees`.
    """
    if math.isnan(number.value):
        return Judged(claim, number, ABSENT)
    verdict = claim.decision(number)
    return Judged(claim, number, "disagrees" if claim.identity and verdict != "agrees" else verdict)


def reason(claim: Claim, number: Answer) -> str:
    """Return why a claim does not apply or has no verdict; for a line the result of its test and interval."""
    return "; ".join(filter(None, [claim.result(number), number.few, number.turns, number.depends]))


def ledger_table(judged: Sequence[Judged]) -> pd.DataFrame:
    """Return one row per claim, in the file's order."""
    rows = [
        (
            claim.id, claim.ref, claim.author, claim.statement, claim.about(), claim.number,
            claim.expected(number), verdict, number.value, number.low, number.high, number.p_value,
            number.runs, claim.scale or "", reason(claim, number), kind(claim),
            decision_p_value(claim, number),
        )
        for claim, number, verdict in judged
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def kind(claim: Claim) -> str:
    """Return what answers a claim: an `identity` that holds for any data and checks the program, a `theorem`
    by a closed form or a solved optimum, or `trained` networks."""
    if claim.identity:
        return "identity"
    return "trained" if isinstance(claim, RunClaim) else "theorem"


def decision_p_value(claim: Claim, number: Answer) -> float:
    """Return the p-value behind a verdict: that the true number lies at the nearest end of the range.

    Two-sided, by Student's t; that of the permutation test for a rank correlation. NaN for a claim without
    one: exact numbers, lines that the test does not reject, with which they agree, and differences of sizes.
    """
    if not math.isnan(number.p_value):
        tested = math.isnan(number.low) or number.rejected  # a line has an interval too
        return number.p_value if tested else math.nan
    if not number.error > 0:
        return math.nan
    bound = claim.expect.bound(number.target)
    distance = min(abs(number.value - end) for end in (bound.low, bound.high))
    return float(2 * special.stdtr(number.freedom, -distance / number.error))


def ledger_page(judged: Sequence[Judged]) -> str:
    """Return the claims as a Markdown table, after a line with their counts."""
    head = "| claim | says | ours | expected | verdict |\n|---|---|---|---|---|\n"
    lines = [
        f"| {_claim_cell(claim)} | {_cell(claim.statement)} | {_number_cell(claim, number)} "
        f"| {_cell(claim.expected(number))} | **{verdict}** |\n"
        for claim, number, verdict in judged
    ]
    return f"# Claims\n\n{counts(judged)}\n\n{head}{''.join(lines)}"


def _claim_cell(claim: Claim) -> str:
    author = "" if claim.author == "paper" else f" ({claim.author})"
    return f"**{_cell(claim.id)}**<br>{_cell(claim.ref)}{author}"


def _number_cell(claim: Claim, number: Answer) -> str:
    why = "" if number.missing else reason(claim, number)  # `spelled` has `missing`
    parts = [f"{claim.number} of {claim.about()}", number.runs, claim.scale or "", why]
    return f"{_cell(spelled(number))}<br>{_cell(', '.join(part for part in parts if part))}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def spelled(number: Answer) -> str:
    """Return a number with its interval, p-value or distance from the target, or why there is none."""
    if math.isnan(number.value):
        return number.missing
    if not math.isnan(number.p_value) and math.isnan(number.low):
        return f"{number.value:.2f} ({p_text(number.p_value)})"
    if not math.isnan(number.target):
        distance = abs(number.value - number.target) / (abs(number.target) or 1)
        return f"{number.value:.6g} ({'relative ' * bool(number.target)}error {distance:.1g})"
    text = f"{number.value:.3g}"
    if number.low == number.high:
        return text
    return text if math.isnan(number.low) else f"{text} [{number.low:.3g}, {number.high:.3g}]"


def line(judged: Judged) -> str:
    """Return one line for the terminal: verdict, statement, and the number with what is expected."""
    claim, number, verdict = judged
    ref, statement = (" ".join(text.split()) for text in (claim.ref, claim.statement))
    ref, statement = (text if text.isprintable() else repr(text) for text in (ref, statement))
    parts = [f"{claim.number.replace('_', ' ')} {spelled(number)}, expected {claim.expected(number)}"]
    parts += [] if number.missing else filter(None, [reason(claim, number)])
    return f"{verdict}: {statement} ({ref}): {'; '.join(parts)} [{claim.id}]"


def counts(judged: Sequence[Judged]) -> str:
    """Return the verdicts' counts, as `12 claims: 9 agree, 2 disagree, 1 does not apply`."""
    verdicts = Counter(verdict for _, _, verdict in judged)
    text = ", ".join(counted_verdict(verdicts[name], name) for name in get_args(Verdict) if verdicts[name])
    return f"{len(judged)} {'claim' if len(judged) == 1 else 'claims'}" + (f": {text}" if text else "")


def counted_verdict(count: int, verdict: str) -> str:
    """Return `1 agrees` or `2 agree`."""
    return f"{count} {verdict if count == 1 else PLURALS.get(verdict, verdict)}"
