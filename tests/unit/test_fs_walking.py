"""What is below a directory: like fsspec on a local directory, at any depth, and never in part."""

import random

import pytest
from fsspec.implementations.local import LocalFileSystem

from ignitetf.fs.filesystem import Walking


class Tree(Walking):
    """Directories and files by path, in memory; listing some directories fails."""

    cachable = False

    def __init__(self, files=(), directories=(), fails=None):
        super().__init__()
        self.files, self.fails = set(files), fails or {}
        self.children = {"/": {}}
        for path in [*directories, *files]:
            while path != "/":
                above = path.rpartition("/")[0] or "/"
                self.children.setdefault(above, {})[path] = None
                path = above
        for path in directories:
            self.children.setdefault(path, {})

    @classmethod
    def _strip_protocol(cls, path):
        many = isinstance(path, list)
        return [cls._strip_protocol(p) for p in path] if many else path.rstrip("/") or "/"

    def info(self, path):
        if path not in self.files and path not in self.children:
            raise FileNotFoundError(path)
        kind = "file" if path in self.files else "directory"
        return {"name": path, "type": kind, "size": len(path) if kind == "file" else 0}

    def ls(self, path, detail=True):
        if path in self.fails:
            raise self.fails[path]
        own = self.info(path)
        infos = [own] if path in self.files else [self.info(p) for p in self.children[path]]
        return infos if detail else [info["name"] for info in infos]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_tree_gives_what_a_local_one_does(tmp_path, seed):
    rng = random.Random(seed)
    names = ["a", "b", "c.txt", "*", "[a]", "ä b"]
    directories = {"/top"}
    for _ in range(rng.randrange(8)):
        directories.add(f"{rng.choice(sorted(directories))}/{rng.choice(names)}")
    files = {f"{rng.choice(sorted(directories))}/{name}.f" for name in rng.choices(names, k=6)}
    for path in directories:
        (tmp_path / path[1:]).mkdir(parents=True, exist_ok=True)
    for path in files:
        (tmp_path / path[1:]).write_bytes(b"x" * len(path))
    here, local = Tree(files, directories), LocalFileSystem()

    def same(function, path, **options):
        def outcome(fs, base):
            try:
                found = getattr(fs, function)(f"{base}{path}", **options)
                found = list(found) if function == "walk" else found
            except (FileNotFoundError, ValueError) as error:
                return type(error)
            if function == "walk":
                return sorted((p[len(base) :], sorted(d), sorted(f)) for p, d, f in found)
            if options.get("total"):
                return found
            # A local directory has a size of its own.
            return sorted((p[len(base) :], p[len(base) :] in files and fs.size(p)) for p in found)

        assert outcome(here, "") == outcome(local, str(tmp_path)), (function, path, options)

    for path in (
        "/top",
        "/none",
        *rng.sample(sorted(files), 1),
        *rng.sample(sorted(directories), 1),
    ):
        for depth in (None, 0, 1, 2):
            same("walk", path, maxdepth=depth)
            same("walk", path, maxdepth=depth, topdown=False)
            for withdirs in (False, True):
                same("find", path, maxdepth=depth, withdirs=withdirs)
            same("du", path, maxdepth=depth, total=True)
    for pattern in ("/top/*", "/top/**", "/top/*/*.f", "/**/[a]*", "/top/?"):
        same("glob", pattern)


def test_directories_come_before_or_after_what_is_in_them_and_may_be_left_out():
    tree = Tree(["/a/b/f", "/a/c/g"])
    assert [level[0] for level in tree.walk("/a")] == ["/a", "/a/b", "/a/c"]
    assert [level[0] for level in tree.walk("/a", topdown=False)] == ["/a/b", "/a/c", "/a"]
    seen = []
    for path, directories, _ in tree.walk("/a"):
        seen.append(path)
        if path == "/a":
            directories.remove("b")
    assert seen == ["/a", "/a/c"]


def test_a_tree_may_be_deep():
    depth = 3000
    tree = Tree(["/d" * depth + "/f"])
    assert tree.find("/d") == ["/d" * depth + "/f"]
    assert sum(1 for _ in tree.walk("/", topdown=False)) == depth + 1
    assert tree.du("/") == 2 * depth + 2


WAYS = {
    "find": lambda fs: fs.find("/a"),
    "walk": lambda fs: list(fs.walk("/a")),
    "du": lambda fs: fs.du("/a"),
    "glob": lambda fs: fs.glob("/a/**"),
    "expand_path": lambda fs: fs.expand_path("/a", recursive=True),
    "get": lambda fs: fs.get("/a", "nowhere/", recursive=True),
    "copy": lambda fs: fs.copy("/a", "/z", recursive=True),
    "rm": lambda fs: fs.rm("/a", recursive=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["/a", "/a/b", "/a/b/c"])
def test_a_directory_that_cannot_be_listed_is_no_empty_one(way, where):
    lost = ConnectionResetError(f"{where}: connection lost")
    with pytest.raises(ConnectionResetError):
        WAYS[way](Tree(["/a/b/c/f", "/a/g"], fails={where: lost}))


def test_what_was_removed_meanwhile_is_left_out():
    tree = Tree(["/a/b/f", "/a/c/g"], fails={"/a/b": FileNotFoundError("/a/b")})
    assert tree.find("/a") == ["/a/c/g"]
    with pytest.raises(FileNotFoundError):
        list(tree.walk("/a", on_error="raise"))
    errors = []
    assert len(list(tree.walk("/a", on_error=errors.append))) == 2
    assert len(errors) == 1
