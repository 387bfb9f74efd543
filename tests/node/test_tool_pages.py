"""The pages of docs/tools run, and print what they say they print."""

from pathlib import Path

import pytest
from helpers.pages import Page

pytestmark = [pytest.mark.node, pytest.mark.slow]
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tools"
# What each page needs beside the extra `test`.
NEEDS = {
    "dali": ["nvidia.dali"],
    "duckdb": ["duckdb", "pyarrow"],
    "fsspec": ["pandas", "pyarrow", "upath"],
    "huggingface": ["datasets"],
    "lightning": ["lightning"],
    "polars": ["pandas", "polars", "pyarrow", "sqlalchemy"],
    "ray_data": ["ray.data"],
    "stateful_dataloader": ["torchdata"],
}


def test_every_page_is_run():
    assert sorted(NEEDS) == sorted(path.stem for path in FOLDER.glob("*.md"))


@pytest.mark.parametrize("name", NEEDS)
def test_a_page_prints_what_it_says(name, client, address, tmp_path, monkeypatch):
    from ignitetf.tables.catalog import drop_manifest

    for module in NEEDS[name]:
        pytest.importorskip(module, reason=f"needs {module}: see the page")
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        Page((FOLDER / f"{name}.md").read_text(encoding="utf-8"), address, tmp_path).run()
    finally:
        for made in ("MEANS", "PICTURES", "PRICE_MEANS", "SAMPLES"):
            client.sql(f"DROP TABLE IF EXISTS {made}")
            drop_manifest(client, made)
