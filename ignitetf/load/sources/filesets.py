"""The files of a table, and the values and splits in the names of files and folders.

location -> **files, with columns from `key=value` folders and their split** -> one source

`year=2020/part-1.parquet` gives the column YEAR, as in Hive and Spark. Files that are called after
splits (`train-00000-of-00002.parquet`, `mnist-test.tfrecord-00000-of-00001`), or are in such
folders, get the column SPLIT, which makes the splits of the data set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

import numpy as np

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import SPLIT, Source
from ignitetf.load.sources.filelist import walk
from ignitetf.load.sources.headings import column_of_heading
from ignitetf.load.sources.location import ChainSource, Place, digest, has_suffix, locate, reading
from ignitetf.load.sources.tabular import TableOptions, renames
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.schema import BYTES, Field, field_for

__all__ = ["DataFile", "data_files", "is_split_word", "open_files", "open_tables"]

_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_LEADING_ZERO: Final = re.compile(r"-?0[0-9]+", re.ASCII)
# Words that name a split, alone or before a mark; before a number any word does.
_SPLIT_WORDS: Final = re.compile(
    r"(train|training|validation|valid|val|dev|test|testing|eval|evaluation)(?![A-Za-z])", re.I
)
_NUMBERED: Final = re.compile(
    r"(?:^|[-._])([A-Za-z][A-Za-z0-9_]*?)(?:\.[a-z]+)?-[0-9]{5}-of-[0-9]{5}", re.ASCII
)


# Names of numbered files that are not splits.
_NO_SPLITS: Final = frozenset({"data", "part"})


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Attributes:
        place: The file.
        values: Values that all of its rows have, by heading, as texts.
        split: The split that its rows are in; None for none.
    """

    place: Place
    values: Mapping[str, str | None] = field(default_factory=dict)
    split: str | None = None


def data_files(
    locations: object, suffixes: tuple[str, ...], split: str | None = None
) -> list[DataFile]:
    """Return the files of a table.

    Args:
        locations: A file, a pattern with `*`, a folder, or a list of them.
        suffixes: Which files of a folder to take, by the end of their name (lower case).
        split: The split to take; None for all.

    Raises:
        SourceError: No file is found, or some files lack a value that others have.
        ConfigError: The split does not exist.
    """
    places = _places(locations, suffixes)
    if not places:
        raise SourceError("no files are given", hint="give a file, a folder, or a pattern")
    splits = _splits(places)
    if split is not None:
        known = sorted({one for one in splits if one is not None})
        if split not in known:
            raise ConfigError(
                f"no split {split!r} in the names of the files and folders",
                hint=did_you_mean(split, known, f"splits: {', '.join(known) or 'none'}", form=repr),
            )
        chosen = [i for i, one in enumerate(splits) if one == split]
        places, splits = [places[i] for i in chosen], [None] * len(chosen)
    elif None in splits or len(set(splits)) < 2:
        splits = [None] * len(places)
    files = [
        DataFile(place, _values(place), one) for place, one in zip(places, splits, strict=True)
    ]
    for one in files[1:]:
        if one.values.keys() != files[0].values.keys():
            key = min(one.values.keys() ^ files[0].values.keys())
            lacks = files[0] if key in one.values else one
            raise SourceError(
                f"{lacks.place.name}: no folder {key}=... above it, unlike other files",
                hint="load the files of each table by themselves",
            )
    return files


def _places(locations: object, suffixes: tuple[str, ...]) -> list[Place]:
    """Return files, and those below folders, in the order of their paths."""
    if isinstance(locations, (list, tuple)):
        return [place for one in locations for place in _places(one, suffixes)]
    place = locate(str(locations))
    if "*" in place.path:
        return [one for found in _matching(place) for one in _below(found, suffixes)]
    return _below(place, suffixes)


def _below(place: Place, suffixes: tuple[str, ...]) -> list[Place]:
    if not place.is_dir():
        return [place]
    found = []
    for name, _, _ in walk(place):
        parts = name.split("/")
        hidden = any(part.startswith("_") and "=" not in part for part in parts)
        if not hidden and has_suffix(parts[-1], suffixes):
            found.append(place.child(name))
    if not found:
        raise SourceError(
            f"{place.name}: no {' or '.join(suffixes)} file in it", hint="give a file or a pattern"
        )
    return found


def _matching(place: Place) -> list[Place]:
    """Return the files and folders that a pattern matches."""
    root, rest = place, ""
    while "*" in root.path:
        rest = f"{root.base}/{rest}" if rest else root.base
        root = root.parent
    with reading(place.name):
        if (local := root.local) is not None:
            names = [path.relative_to(local).as_posix() for path in local.glob(rest)]
        else:
            head = root.path.rstrip("/") + "/"
            names = [str(path).rpartition(head)[2] for path in place.fs.glob(place.path)]
    shown = sorted(name for name in names if not PurePosixPath(name).name.startswith("."))
    if not shown:
        raise SourceError(f"{place.name}: no file matches", hint="check the pattern")
    return [root.child(name) for name in shown]


def _values(place: Place) -> dict[str, str | None]:
    """Return the values in the `key=value` folders above a file."""
    found: dict[str, str | None] = {}
    for part in PurePosixPath(place.name.replace("\\", "/")).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
    return found


def is_split_word(name: str) -> bool:
    """Return whether a name is a usual name of a split: train, val, test, ..."""
    return _SPLIT_WORDS.fullmatch(name) is not None


def _splits(places: Sequence[Place]) -> list[str | None]:
    """Return the split of each file.

    The usual name of a split is found in the name of the file, or is the name of its folder. Any
    other name must be in front of a number in the name of the file.
    """
    found = []
    for place in places:
        numbered = _NUMBERED.search(place.base)
        word = None if numbered is None else numbered[1]
        known = None if word is None else _SPLIT_WORDS.fullmatch(word)
        known = known or _SPLIT_WORDS.match(place.base) or _SPLIT_WORDS.fullmatch(place.parent.base)
        found.append(known[1] if known else None if word in _NO_SPLITS else word)
    return found


def open_tables(
    kind: str,
    location: object,
    suffixes: tuple[str, ...],
    split: str | None,
    opener: Callable[[Place, TableOptions], Source],
    options: TableOptions,
) -> Source:
    """Open the files of a table whose columns can be chosen and renamed.

    Args:
        kind: The kind of source, for messages.
        location: A file, a pattern with `*`, a folder, or a list of them.
        suffixes: Which files of a folder to take, by the end of their name (lower case).
        split: The split to take; None for all.
        opener: Opens one file.
        options: The columns to load, which may also be those of folders.

    Raises:
        ConfigError: No location is given.
    """
    if not location:
        raise ConfigError(
            f"source {kind!r} needs a file", hint="give a file, a folder, or a pattern"
        )
    files = data_files(location, suffixes, split)
    given = {name.upper(): name for name in files[0].values}
    if options.key is not None and options.key.strip().upper() in given:
        raise ConfigError(
            f"key {options.key!r}: all rows of a file have the value of its folder",
            hint="take a column of the files as the key",
        )
    own, of_folders = {}, {}
    for old, new in renames(options.rename).items():
        if (name := given.get(old.strip().upper())) is None:
            own[old] = new
        else:
            of_folders[name] = new
    columns: list[str] | None = None
    kept = set(files[0].values)
    if options.columns is not None:
        listed = options.columns
        words = listed.split(",") if isinstance(listed, str) else listed
        wanted = [word.strip() for word in words if word.strip()]
        kept = {given[word.upper()] for word in wanted if word.upper() in given}
        columns = [word for word in wanted if word.upper() not in given]
        if kept and not columns:
            raise ConfigError(
                f"columns {','.join(wanted)}: all are names of folders",
                hint="name a column of the files too",
            )
    inner = replace(options, columns=columns, rename=own or None)
    heads = {
        name: column_of_heading(of_folders.get(name, name), i)
        for i, name in enumerate(files[0].values)
        if name in kept
    }
    return open_files(files, lambda place: opener(place, inner), options.bad_records, heads)


def open_files(
    files: Sequence[DataFile],
    opener: Callable[[Place], Source],
    bad_records: OnBadRecord,
    heads: Mapping[str, str] | None = None,
) -> Source:
    """Open the files of a table as one source.

    Args:
        files: The files.
        opener: Opens one of them.
        bad_records: Handling of bad records.
        heads: The columns made of values of the files, by their headings; None for none.
    """
    whole = {
        column: [one.values[heading] for one in files] for heading, column in (heads or {}).items()
    }
    fields = {name: _field(name, values) for name, values in whole.items()}
    splits = list(dict.fromkeys(one.split for one in files if one.split is not None))
    if splits:
        fields[SPLIT] = Field(SPLIT, TypeCode.STRING, BYTES)
        whole[SPLIT] = [one.split for one in files]
    sources = []
    for i, one in enumerate(files):
        source = opener(one.place)
        if fields:
            source = _WithValues(
                source,
                {f: values[i] for f, values in zip(fields.values(), whole.values(), strict=True)},
            )
        sources.append(source)
    found = sources[0] if len(sources) == 1 else ChainSource(sources, bad_records=bad_records)
    hidden = [
        name
        for name in fields
        if name != SPLIT
        and any(isinstance(s, _WithValues) and name not in s.added for s in sources)
    ]
    if hidden:
        found.note(
            f"the files have columns of the same name as folders: {', '.join(hidden)}; those of the"
            " files are loaded, so the values of the folders are not"
        )
    for name, values in whole.items():
        zero = next((v for v in values if v is not None and _LEADING_ZERO.fullmatch(v)), None)
        if zero is not None and fields[name].dtype != BYTES:
            found.note(f"the folder {name}={zero} is the number {int(zero)}, as for Hive and Spark")
    if splits:
        if any(not isinstance(s, _WithValues) or SPLIT not in s.added for s in sources):
            found.note(f"the column {SPLIT} of the files is kept, so they make no splits")
        else:
            found.split_names = tuple(splits)
    return found


def _field(name: str, values: Sequence[str | None]) -> Field:
    """Return the field of values in the names of folders: longs if possible, otherwise texts."""
    nullable = None in values
    present = [value for value in values if value is not None]
    if present and all(_INTEGER.fullmatch(value) for value in present):
        return replace(field_for(name, np.dtype(np.int64)), nullable=nullable)
    return Field(name, TypeCode.STRING, BYTES, (), nullable)


class _WithValues(Source):
    """A source whose records get further fields, each with one value.

    Attributes:
        added: Names of these fields, without fields that the records already have.
    """

    def __init__(self, source: Source, values: Mapping[Field, str | None]) -> None:
        super().__init__(bad_records=source.bad_records)
        self._source = source
        self.place = getattr(source, "place", None)
        own = {*source.schema.names, *filter(None, [source.key_name])}
        self._values = {f: value for f, value in values.items() if f.name not in own}
        self.added = {f.name for f in self._values}
        self.schema = replace(source.schema, fields=(*source.schema.fields, *self._values))
        self.rows, self.nbytes = source.rows, source.nbytes
        self.class_names, self.key_name = source.class_names, source.key_name
        self.resumable = source.resumable
        self.hint_of_types = source.hint_of_types
        self.notes = source.notes
        self.skipped = source.skipped

    def fingerprint(self) -> str:
        """A digest of the source's fingerprint and the values."""
        values = [(f.name, value) for f, value in self._values.items()]
        return digest("values", self._source.fingerprint(), *values)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        for batch in self._source.batches(start, max_bytes=max_bytes):
            more = {f.name: _repeated(f, v, len(batch)) for f, v in self._values.items()}
            yield self._source.position, Batch(batch.key, {**batch.columns, **more})
        self.rows = self._source.rows
        yield self._source.position, Batch(_no_keys(), {})


def _no_keys() -> Column:
    return Dense(np.empty(0, np.int64))


def _repeated(kind: Field, value: str | None, count: int) -> Column:
    valid = None if value is not None else np.zeros(count, np.bool_)
    if kind.dtype != BYTES:
        return Dense(np.full(count, int(value or 0), kind.dtype), valid)
    raw = np.frombuffer((value or "").encode(), np.uint8)
    nothing = np.zeros(count, np.int64)
    return Runs(Dense(raw), nothing, nothing + len(raw), valid)
