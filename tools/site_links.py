"""Links of the site to files outside docs/ go to the repository; mkdocs calls this as a hook.

In a checkout `../examples/train_mnist.py` is a file. The site has no such page.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

REPOSITORY = "https://github.com/ignitetf/ignitetf/blob/main/"
_LINK = re.compile(r"\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with links that leave docs/ replaced."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def outside(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        return found[0] if path.startswith("docs/") else f"]({REPOSITORY}{path})"

    return _LINK.sub(outside, markdown)
