"""Render templates: HTML with every value escaped, and addresses with every value quoted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from ignitetf.ui.cells import ago, bytes_text, cell, count_text, full_text
from ignitetf.ui.files import time_of

__all__ = ["Pages", "href", "static_files"]

_FOLDER: Final = Path(__file__).parent
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def href(path: str, /, **params: str | int | Sequence[str] | None) -> str:
    """Return an address of this server; a parameter of None is omitted, a list repeats its name."""
    given = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of each file that pages refer to, by name."""
    return {
        path.name: (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted((_FOLDER / "static").iterdir())
        if path.suffix in _TYPES
    }


def _stamp() -> str:
    """Return a version for the addresses of these files, so that browsers do not use old copies."""
    digest = hashlib.sha256()
    for content, _ in static_files().values():
        digest.update(content)
    return digest.hexdigest()[:12]


class Pages:
    """Renders pages.

    Args:
        form: The secret of forms that change something.
        write: True if pages contain such forms.
        place: Address of the cluster, for people.
    """

    def __init__(self, form: str, write: bool, place: str) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {
            "href": href,
            "cell": cell,
            "form_secret": form,
            "write": write,
            "place": place,
            "stamp": _stamp(),
        }
        self._environment.filters |= {
            "ago": ago,
            "nbytes": bytes_text,
            "count": count_text,
            "full": full_text,
            "when": time_of,
        }

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, or a part of one."""
        return HTMLResponse(self._environment.get_template(template).render(values), status)

    def refusal(self, status: int, title: str, reason: str, hint: str) -> Response:
        """Return the page of a refused request, with the reason."""
        return self.page(
            "refused.html", status, title=title, reason=reason, hint=hint, section=None
        )
