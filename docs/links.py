"""Hook of MkDocs: show links to files outside docs/ as text, since the site has no such pages.

On a git host, where these pages are read too, the links lead to the files.
"""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.resolve()
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links to files outside docs/ replaced by their texts."""
    folder = (DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        return link[0] if target.is_relative_to(DOCS) else link[1]

    return LINK.sub(shown, markdown)
