"""Write docs/params.md and docs/commands.md from the schema of params.yaml and the commands' own help.

    python docs/reference.py

A test fails if a page is not what this writes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ncpipe.commands.cli import app
from ncpipe.commands.json_schema import json_schema
from ncpipe.config.params import Params

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by docs/reference.py; edit the docstrings of ncpipe instead. -->\n"


def params_page() -> str:
    """Return the page of every key of params.yaml, a table for each group of keys."""
    lines = [
        "# params.yaml",
        "",
        NOTE,
        "This page lists every key that a `params.yaml` may have.",
        "Keys with a default may be left out.",
        "`ncpipe grid` checks a file against this list and reports every mistake.",
    ]
    seen: set[str] = set()
    for path, group in groups("", json_schema(Params)):
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
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        arguments = [own.name.upper() for own in command.params if own.param_type_name == "argument"]
        lines += ["", f"## {name}", "", f"`{' '.join(['ncpipe', name, *arguments])}`", ""]
        lines.append(paragraphs(command.help))
        described = [own for own in command.params if getattr(own, "help", None) and not own.hidden]
        if described:
            lines += ["", "| option | meaning |", "|---|---|"]
        for own in described:
            names = (
                [own.name.upper()] if own.param_type_name == "argument" else [*own.opts, *own.secondary_opts]
            )
            lines.append(f"| {', '.join(f'`{text}`' for text in names)} | {cell(own.help)} |")
    return "\n".join(lines) + "\n"


def paragraphs(text: str) -> str:
    """Return the help with a sentence on each line and rich's markup removed."""
    joined = [" ".join(part.split()) for part in re.sub(r"\x08|\f", "", text).split("\n\n")]
    return "\n\n".join(re.sub(r"(?<=[.]) (?=[A-Z])", "\n", part) for part in joined)


PAGES = {"params.md": params_page, "commands.md": commands_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
