"""Execute the notebooks of docs/ in place: results.ipynb on the study that it reads.

dvc --cd stages/smoke repro
python docs/execute_notebook.py
"""

import ast
import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

NOTEBOOKS = sorted(Path(__file__).parent.glob("*.ipynb"))


def executed(notebook: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a notebook's cells of code in order, in the working directory.

    Returns the notebook with what the last line of each cell shows, and the names that its cells define.
    """
    names: dict[str, Any] = {}
    cells = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            data = display_data(value_of("".join(cell["source"]), names))
            output = {
                "data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result",
            }  # fmt: skip
            cell = cell | {"execution_count": count, "outputs": [output]}
        cells.append(cell)
    return notebook | {"cells": cells}, names


def value_of(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last line, an expression."""
    tree = ast.parse(source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), "the last line of a cell shows something"
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def display_data(value: Any) -> dict[str, Any]:
    """Return a value by MIME type, as a notebook holds it; the same bytes for the same value."""
    if isinstance(value, Figure):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(value)
        return {"image/png": base64.b64encode(buffer.getvalue()).decode()}
    plain = {"text/plain": repr(value).splitlines(keepends=True)}
    if isinstance(value, pd.DataFrame):
        return {"text/html": value.to_html(border=0).splitlines(keepends=True)} | plain
    return plain


def main() -> None:
    os.chdir(Path(__file__).parent)
    for path in NOTEBOOKS:
        notebook, _ = executed(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
