"""Write the pages of reference: keys of params.yaml, commands, metrics, and calls of claims about theory.

    python docs/reference.py

A test fails if a page is not what this writes.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from ncpipe.claims.run_calls import RUN_CALLS
from ncpipe.claims.theory_calls import THEORY_CALLS
from ncpipe.commands.cli import app
from ncpipe.commands.json_schema import json_schema, record_at
from ncpipe.config.params import Params
from ncpipe.metrics.catalogue import (
    ENTRIES,
    GAPS,
    MINORITIES,
    OUTLIERS,
    RANKS,
    REGRESSION,
    SAMPLE_TOKENS,
    SOURCES,
    TAGS,
    TOKENS,
    TRANSFERS,
    Metric,
)
from ncpipe.papers.k23.calls import CALLS as K23
from ncpipe.papers.s24.calls import CALLS as S24
from ncpipe.papers.s25.calls import CALLS as S25

FOLDER = Path(__file__).parent
PAPERS = {  # calls, and the pages that explain them
    "s25": (S25, "[Theory](theory.md)"),
    "s24": (S24, "[Low rank](low_rank.md)"),
    "k23": (K23, "[Regimes](regimes.md)"),
}
NOTE = "<!-- Written by docs/reference.py; edit the docstrings of ncpipe instead. -->\n"
NOTATION = """\
There are K classes and N samples h of width d, n_k of them in class k, with label y.
μ_k are the class means and μ_G is the mean of the class means, so each class weighs the same.
Σ_W = 1/N Σ (h − μ_y)(h − μ_y)ᵀ and Σ_B = 1/K Σ (μ_k − μ_G)(μ_k − μ_G)ᵀ.
W (K, d) and b are the last layer, M holds the centred class means at unit length, E = I − 11ᵀ/K.
‖·‖ is the Frobenius norm.

Var_k = 1/n_k Σ ‖h − μ_k‖², a sum over coordinates; pairs are the K(K−1)/2 pairs of classes.
Standard deviations are over K; the quantile p of N margins is the ⌈pN⌉-th smallest.

The nearer to the value at collapse, the more collapsed.
*Order* is the power of the distance from collapse in which the metric vanishes.
[Rounding floors](depth_rates.md) follow from it.
*Every* layer is each measured one; the *last* one enters the classifier.
*Both* splits are `train` and, if there is one, `test`, each about its own class means unless stated."""
SOURCES_OF_FORMULAS = """\
- **S25**: Súkeník, Lampert, Mondelli, arXiv 2505.15239.
- **S24**: Súkeník, Mondelli, Lampert, NeurIPS 2024.
- **K23**: Kothapalli, TMLR 2023.
- **P20**: Papyan, Han, Donoho, PNAS 2020.
- **WP24**: Wu, Papyan, *Linguistic collapse*, NeurIPS 2024 (arXiv 2405.17767).
- **LYWS23**: Liu, Yu, Weller, Schölkopf, ICLR 2023 (arXiv 2303.06484).
- **JZWQMYZ24**: Jiang, Zhou, Wang, Qu, Mixon, You, Zhu, ICML 2024 (arXiv 2310.05351).
- **ZCML26**: Zhao, Cheng, Masarczyk, Lucchi, ICLR 2026 (arXiv 2602.16642).
- **R55**: Rankin, *The closest packing of spherical caps in n dimensions*, 1955.
- **R26**: Rupa, 2026 (arXiv 2604.00230).
- **RV07**: Roy, Vetterli, EUSIPCO 2007.
- **ZDBGT24**: Zangrando, Deidda, Brugiapaglia, Guglielmi, Tudisco, arXiv 2402.03991.
- **W27**: Wilson, *Probable inference, the law of succession, and statistical inference*, 1927.
- **LSG26**: Luthra, Salunkhe, Galanti, *Directional neural collapse*, 2026 (arXiv 2603.03530).
- **ADGZR24**: Andriopoulos, Dong, Guo, Zhao, Ross, NeurIPS 2024 (arXiv 2409.04180).
- **RU26**: Rangamani, Unal, *Deep neural regression collapse*, CPAL 2026 (arXiv 2603.23805).
- **FARL17**: Facco, d'Errico, Rodriguez, Laio, *Scientific Reports* 7, 2017 (arXiv 1803.06992).
- **ZP26**: Zhang, Papyan, arXiv 2602.09297.
- **LLWQ24**: Li, Li, Wang, Qu, ICML 2024 (arXiv 2310.15903).
- **BBPMF24**: Ben Ammar, Belkhir, Popescu, Manzanera, Franchi, *NECO*, ICLR 2024 (arXiv 2310.06823).
- **HG17**: Hendrycks, Gimpel, ICLR 2017 (arXiv 1610.02136).
- **LLLS18**: Lee, Lee, Lee, Shin, NeurIPS 2018 (arXiv 1807.03888).
- **LQ25**: Liu, Qin, CVPR 2025 (arXiv 2311.01479).
- **LWOL20**: Liu, Wang, Owens, Li, NeurIPS 2020 (arXiv 2010.03759).
- **SMZL22**: Sun, Ming, Zhu, Li, ICML 2022 (arXiv 2204.06507).
- **WGX26**: Wang, Gao, Xie, AAAI 2026 (arXiv 2512.07844).
- **WLFZ22**: Wang, Li, Feng, Zhang, *ViM*, CVPR 2022 (arXiv 2203.10807)."""
# heading: what has these metrics, and the metrics
METRICS: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "Features and classifier": ("Everything that is measured has these metrics.", ENTRIES),
    "Gap to the optimum": ("Runs of the pipeline know their loss and penalty.", GAPS),
    "Imbalanced classes": (
        "With `data.imbalance` the first `majority` classes are large and the others small. "
        "In a long tail (`majority: null`) the head is the first third of the classes, the tail the last.",
        MINORITIES,
    ),
    "Ranks of inner matrices": (
        "Networks have them under `penalty.scope: all`, with full batches and up to 20,000 samples.",
        RANKS,
    ),
    "Transfer": (
        "Of classes that no classifier knows, as a frozen encoder's; a sweep has them of every layer.\n"
        "`nc.measure(features, labels, shots=(1, 5))` and `ncpipe metrics FILE --shots 5` have them.\n"
        "With `data.transfer` the split `target` holds the classes that the network was not trained on.\n"
        "It has `nc1_trace_ratio` and `cdnv` too.\n"
        "Each number of shots n has a value of its own, such as `transfer_ncc_error_005`.",
        TRANSFERS,
    ),
    "Other data": (
        "With [a third split](outliers.md) of other data the split `ood` has these, of its samples against "
        "those of `test`.\nInner layers have the scores that need no classifier.",
        OUTLIERS,
    ),
    "Tokens": (
        "The classes are the tokens of a vocabulary ([language models](language.md)).\n"
        "Then `gnc2_*`, `unc3_*` and `cdnv_log` come for any K.",
        TOKENS,
    ),
    "Tokens of a sample": (
        "A network that sees all tokens of a sample and predicts from one has these beside that token's.",
        SAMPLE_TOKENS,
    ),
    "Generated language": ("Runs with `source: markov` know their best attainable loss.", SOURCES),
    "Several labels": (
        "Where a sample may have [several classes](labels.md), the metrics above are of the samples with one "
        "tag, and these of the others and of all.\nS is a sample's set of tags.",
        TAGS,
    ),
    "Regression": (
        "Where the targets are [vectors of t numbers](regression.md), these stand in place of all that needs "
        "classes.\nWith them come the singular values and ranks of W.\nΣ is the covariance of the training "
        "targets, over N.",
        REGRESSION,
    ),
}


def params_page() -> str:
    """Return the page of every key of params.yaml, a table for each group of keys."""
    lines = [
        "# params.yaml",
        "",
        NOTE,
        "This page lists every key that a `params.yaml` may have.",
        "Most keys with a default may be left out; `about` may not.",
        "`ncpipe grid` checks a file against this list and reports every mistake.",
    ]
    seen: set[str] = set()
    schema = json_schema(Params)
    for path, group in groups("", inlined(schema, schema["$defs"])):
        anchor = f"{path} {group['title']}"
        if anchor in seen:
            continue
        seen.add(anchor)
        lines += ["", f"## {path or 'Top level'}{chosen_by(group)}", ""]
        if about := group.get("description"):
            lines += [sentence(about), ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for key, node in group["properties"].items():
            default = "required" if key in group.get("required", []) else f"`{yaml(node.get('default'))}`"
            lines.append(f"| `{key}` | {values(node)} | {default} | {cell(node.get('description', ''))} |")
    return "\n".join(lines) + "\n"


def inlined(schema: Any, records: dict[str, Any]) -> Any:
    """Return a schema with records in place of references."""
    if isinstance(schema, list):
        return [inlined(item, records) for item in schema]
    if not isinstance(schema, dict):
        return schema
    whole = record_at(schema, records)
    return {key: inlined(value, records) for key, value in whole.items() if key != "$defs"}


def groups(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of the schema that has keys, with its dotted path, outer ones first."""
    if "properties" in node:
        yield path, {"title": "", **node}
        for key, child in node["properties"].items():
            yield from groups(f"{path}.{key}".lstrip("."), child)
    for child in alternatives(node):
        yield from groups(path, child)
    if isinstance(own := node.get("additionalProperties"), dict):
        yield from groups(f"{path}.NAME", own)


def alternatives(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [*node.get("anyOf", []), *node.get("oneOf", [])]


def chosen_by(group: dict[str, Any]) -> str:
    """Return ` (source: digits, mnist)` for an object that a key of fixed values selects, else ''."""
    for key in ("source", "architecture", "name"):
        node = group["properties"].get(key, {})
        if options := node.get("enum", [node["const"]] if "const" in node else []):
            return f" ({key}: {', '.join(options)})"
    return ""


def values(node: dict[str, Any]) -> str:
    """Return what a key may be, as `0 to 1`, `auto, cpu` or `list of integers`."""
    if "const" in node:
        return f"`{yaml(node['const'])}`"
    if "enum" in node:
        return ", ".join(f"`{yaml(value)}`" for value in node["enum"])
    if choices := alternatives(node):
        return " or ".join(dict.fromkeys(values(choice) for choice in choices))
    match node.get("type"):
        case "array":
            return f"list of {values(node.get('items', {}))}"
        case "null":
            return "`null`"
        case "object":
            return "keys"
        case "integer" | "number" as kind:
            low, high = node.get("minimum", node.get("exclusiveMinimum")), node.get("maximum")
            ends = (
                [f"above {low:g}" if "exclusiveMinimum" in node else f"from {low:g}"]
                if low is not None
                else []
            )
            high = node.get("exclusiveMaximum", high)
            if high is not None and high < 1e9:
                ends.append(f"below {high:g}" if "exclusiveMaximum" in node else f"to {high:g}")
            return " ".join([kind, *ends])
        case kind:
            return str(kind or "any")


def yaml(value: Any) -> str:
    """Return a default or a choice as params.yaml writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def commands_page() -> str:
    """Return the page of every command: its help, its arguments and its options."""
    lines = ["# Commands", "", NOTE, "Each command prints this text with `ncpipe COMMAND --help`."]
    group: Any = typer.main.get_command(app)
    for name, lazy in group.commands.items():
        command = lazy.loaded()
        needed = [
            argument(own) if own.param_type_name == "argument" else f"{own.opts[0]} {own.metavar}"
            for own in command.params
            if own.param_type_name == "argument" or own.required
        ]
        lines += ["", f"## {name}", "", f"`{' '.join(['ncpipe', name, *needed])}`", ""]
        lines.append(paragraphs(command.help))
        described = [own for own in command.params if getattr(own, "help", None) and not own.hidden]
        if described:
            lines += ["", "| option | meaning |", "|---|---|"]
        for own in described:
            names = [argument(own)] if own.param_type_name == "argument" else [*own.opts, *own.secondary_opts]
            lines.append(f"| {', '.join(f'`{text}`' for text in names)} | {cell(own.help)} |")
    return "\n".join(lines) + "\n"


def argument(own: Any) -> str:
    """Return how the help of a command names one of its arguments."""
    name = str(own.metavar or own.name.upper())
    return name if own.required or name.startswith("[") else f"[{name}]"


def paragraphs(text: str) -> str:
    """Return the help with a sentence on each line and rich's markup removed."""
    joined = [" ".join(part.split()) for part in re.sub(r"\x08|\f", "", text).split("\n\n")]
    return "\n\n".join(re.sub(r"(?<=[.]) (?=[A-Z])", "\n", part) for part in joined)


def metrics_page() -> str:
    """Return the page of every metric: notation, a table for each group, and the sources."""
    lines = ["# Table of metrics", "", NOTE, "[Metrics](metrics.md) explains when a value is undefined."]
    lines += ["", "## Notation", "", NOTATION]
    for heading, (about, metrics) in METRICS.items():
        lines += ["", f"## {heading}", "", about, "", *page_table(metrics)]
    return "\n".join([*lines, "", "## Sources", "", SOURCES_OF_FORMULAS]) + "\n"


def calls_page() -> str:
    """Return the page of the functions that claims may name."""
    lines = ["# Calls of claims", "", NOTE]
    lines += [
        "A claim with `quantity: computed` names a number of a run in `call` and its arguments in `args`.",
        "",
        *calls_table(RUN_CALLS),
        "",
        "A claim with `quantity: theory` names one of these calls and its arguments in the same way.",
        "`against: numerical` compares with an independent numerical check where there is one.",
        "",
        *calls_table(THEORY_CALLS),
    ]
    for paper, (calls, about) in PAPERS.items():
        lines += [
            *("", f"## {paper.upper()}", "", f"{about} explains them."),
            "They are for a study with this line in its `study.py`:",
            *("", "```python", f"from ncpipe.papers.{paper}.calls import CALLS", "```", ""),
            *calls_table(calls),
        ]
    return "\n".join(lines) + "\n"


def page_table(metrics: tuple[Metric, ...]) -> list[str]:
    """Return the lines of a Markdown table in docs/metric_tables.md."""
    head = ["metric", "formula", "range", "at collapse", "order", "source", "layers, splits"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for metric in metrics:
        collapse = metric.collapse.replace("-1", "−1").replace("inf", "∞").replace("-", "")
        order = "" if metric.order is None else str(metric.order)
        cells = [
            f"`{metric.name}`",
            metric.formula,
            metric.interval,
            collapse,
            order,
            metric.source,
            metric.where,
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return lines


def calls_table(calls: Mapping[str, tuple[Callable[..., Any], ...]]) -> list[str]:
    """Return a table of calls: arguments, docstring, and if there is a check."""
    lines = ["| `call` | number | numerical check |", "|---|---|---|"]
    for name, (function, *check) in calls.items():
        given = [name for name in inspect.signature(function).parameters if name not in ("claim", "tables")]
        paragraph = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        number = paragraph.removeprefix("Return ").removeprefix("the ").replace("|", "\\|")
        if number.split()[0].isalpha() and len(number.split()[0]) > 3:  # a word, not a symbol
            number = number[0].upper() + number[1:]
        lines.append(f"| `{name}({', '.join(given)})` | {number} | {'yes' if check else ''} |")
    return lines


PAGES = {
    "params.md": params_page,
    "commands.md": commands_page,
    "metric_tables.md": metrics_page,
    "claim_calls.md": calls_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
