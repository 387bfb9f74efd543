"""Paths of universal_pathlib on `igfs://` do what those of `pathlib` do."""

import pickle

import pytest

upath = pytest.importorskip(
    "upath", reason="needs universal_pathlib: pip install 'ignitetf[upath]'"
)
pytestmark = pytest.mark.node


@pytest.fixture
def root(address, cache_name):
    path = upath.UPath(f"igfs://{address}/{cache_name}")
    path.mkdir()
    yield path
    path.fs.rm_exactly(path.path, recursive=True)


@pytest.mark.filterwarnings("error")
def test_a_tree_is_that_of_a_local_folder(root, tmp_path):
    seen = []
    for base in (root, upath.UPath(tmp_path)):
        (base / "a" / "b").mkdir(parents=True)
        (base / "a" / "1.txt").write_text("one")
        (base / "a" / "b" / "2.txt").write_bytes(b"two\n")
        with (base / "3 ä.txt").open("w", encoding="utf-8") as file:
            file.write("ä")
        moved = (base / "a" / "1.txt").rename(base / "a" / "4.txt")
        assert moved == base / "a" / "4.txt" and not (base / "a" / "1.txt").exists()
        with pytest.raises(FileNotFoundError):
            (base / "none").read_text()
        seen.append(
            (
                sorted(path.name for path in base.iterdir()),
                sorted(path.name for path in base.rglob("*.txt")),
                sorted(path.name for path in base.glob("a/*.txt")),
                [(path.stem, path.suffix, path.parent.name) for path in (moved,)],
                (moved.read_text(), moved.is_file(), (base / "a").is_dir(), moved.stat().st_size),
                (base / "3 ä.txt").read_text(encoding="utf-8"),
            )
        )
        (base / "a" / "b" / "2.txt").unlink()
        (base / "a" / "b").rmdir()
        assert not (base / "a" / "b").exists()
    assert seen[0] == seen[1]


def test_a_path_keeps_its_node_and_not_its_password(root, address):
    path = root / "file"
    assert str(path) == f"igfs://{address}{path.path}" == path.as_uri()
    for same in (upath.UPath(str(path)), pickle.loads(pickle.dumps(path))):
        same.write_text("same")
        assert path.read_text() == "same" and str(same) == str(path)
    named = upath.UPath("igfs://ann:secret@10.0.0.1:10800/runs/a")
    assert str(named / "b") == "igfs://ann@10.0.0.1:10800/runs/a/b"
    assert "secret" not in repr(named)
    assert str(upath.UPath("igfs:///runs") / "a") == "igfs:///runs/a"
    assert str((path / "c").relative_to(path)) == "c"
