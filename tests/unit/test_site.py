"""The site is built without a warning, and its pages ask no other host for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches by itself. Links that a reader follows may go anywhere.
_FETCHED = re.compile(
    r'<(?:script|img|iframe|source|link(?![^>]*rel="?canonical))\b[^>]*?(?:src|href)="?(?:https?:)?//'
)
_IN_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_asks_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not _FETCHED.search(text), page
        assert not _IN_STYLE.search(text), page
        assert 'class="mermaid"' not in text, "its script would come from another host"
    for style in site.rglob("*.css"):
        assert not _IN_STYLE.search(style.read_text(encoding="utf-8")), style


def test_the_reference_has_the_public_names(site):
    import ignitetf
    import ignitetf.train

    text = (site / "reference" / "index.html").read_text(encoding="utf-8")
    for name in {*ignitetf.__all__, *ignitetf.train.__all__} - {"DataParallel"}:
        assert f".{name}" in text, name


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs").as_posix()) in listed
