"""Several files of one table, read one after the other.

files -> sources of the same schema -> **one source**
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import Source, keys_of
from ignitetf.load.sources.difference import difference
from ignitetf.load.sources.location import Place, digest, locate, reading
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Dense, values_of

__all__ = ["ChainSource", "files_at"]


def files_at(locations: object, suffixes: tuple[str, ...]) -> list[Place]:
    """Find the files of a path, a pattern with `*`, a folder, or a list of those; sorted by name.

    Args:
        locations: One location or several.
        suffixes: Which files of a folder to take, by the end of their name (lower case).

    Raises:
        SourceError: Nothing is there.
    """
    if isinstance(locations, (list, tuple)):
        found = [place for one in locations for place in files_at(one, suffixes)]
    else:
        found = _files_of(locate(str(locations)), suffixes)
    if not found:
        raise SourceError("no files are given", hint="give a file, a folder, or a pattern")
    return found


def _files_of(place: Place, suffixes: tuple[str, ...]) -> list[Place]:
    if "*" in place.base:
        return _matching(place)
    if not place.is_dir():
        return [place]
    names = [
        n for n, is_dir, _, _ in place.children() if not is_dir and not n.startswith((".", "_"))
    ]
    found = [place.child(n) for n in names if any(s in n.lower() for s in suffixes)]
    if not found:
        raise SourceError(
            f"{place.name}: no {' or '.join(suffixes)} file in it", hint="give a file or a pattern"
        )
    return found


def _matching(place: Place) -> list[Place]:
    folder = place.parent
    with reading(place.name):
        if place.local is not None:
            names = sorted(p.name for p in place.local.parent.glob(place.base))
        else:
            names = sorted(str(p).rpartition("/")[2] for p in place.fs.glob(place.path))
    if not names:
        raise SourceError(f"{place.name}: no file has such a name", hint="check the pattern")
    return [folder.child(name) for name in names]


class ChainSource(Source):
    """Several sources of one schema as one; running keys continue from file to file."""

    def __init__(self, sources: Sequence[Source], *, bad_records: OnBadRecord = "fail") -> None:
        """Check that all have the schema of the first, except for nulls."""
        super().__init__(bad_records=bad_records)
        first = sources[0]
        self.sources = list(sources)
        self.class_names = first.class_names
        for source in self.sources[1:]:
            # Each file may number its classes by itself.
            source.use_classes(self.class_names or ())
            self.class_names = source.class_names or self.class_names
        self.key_name = first.key_name
        self.schema = first.schema
        for source in self.sources[1:]:
            self._take_schema(source)
        for source in self.sources:
            self.notes += source.notes
        known = [source.rows for source in self.sources]
        self.rows = None if None in known else sum(n or 0 for n in known)
        sizes = [source.nbytes for source in self.sources]
        self.nbytes = None if None in sizes else sum(n or 0 for n in sizes)

    def _take_schema(self, source: Source) -> None:
        theirs = {field.name: field for field in source.schema.fields}
        fields = [
            replace(mine, nullable=mine.nullable or other.nullable)
            for mine in self.schema.fields
            if (other := theirs.get(mine.name)) and replace(mine, nullable=other.nullable) == other
        ]
        same = len(fields) == len(self.schema.fields) == len(theirs)
        if not same or source.schema.key != self.schema.key:
            place = getattr(source, "place", None)
            raise SourceError(
                f"file {self.sources.index(source) + 1} of {len(self.sources)} has other columns "
                f"or types than the first: {difference(source.schema, self.schema)}"
                + ("" if place is None else f" ({place.name})"),
                hint="load files of different tables one by one, or declare the types",
            )
        self.schema = replace(self.schema, fields=tuple(fields))

    def fingerprint(self) -> str:
        """Made from the fingerprints of all files, in order."""
        return digest("chain", *(source.fingerprint() for source in self.sources))

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        base = 0
        for source in self.sources:
            if source.rows is None or base + source.rows > start:
                taken = 0
                for batch in source.batches(max(0, start - base), max_bytes=max_bytes):
                    self.skipped += source.skipped[taken:]
                    taken = len(source.skipped)
                    yield base + source.position, self._moved(batch, base)
                self.skipped += source.skipped[taken:]
                for text in source.notes:
                    self.note(text)
            base += source.rows or 0
            yield max(base, start), Batch(keys_of([]), {})
        self.rows = base

    def _moved(self, batch: Batch, base: int) -> Batch:
        # A file may have its columns in another order.
        columns = {name: batch.columns[name] for name in self.schema.names}
        if self.key_name is not None or batch.key is None:
            return Batch(batch.key, columns)
        return Batch(Dense(values_of(batch.key) + base), columns)
