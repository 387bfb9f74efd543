"""The pages of data sets: the list, rows, one row, images, partitions, fields and splits."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from ignitetf.errors import ConfigError, KeyNotFound
from ignitetf.explore.browse import View, open_view, version_of
from ignitetf.explore.cluster import Manifest, list_caches, list_manifests
from ignitetf.explore.filters import Filter
from ignitetf.explore.histograms import Bar, Sample, sample_of, type_name
from ignitetf.ui.cluster import Cluster
from ignitetf.ui.pictures import encoded_picture, frame_of
from ignitetf.ui.spread import Part, Spread, spread_of
from ignitetf.ui.view_request import ViewRequest

__all__ = [
    "about",
    "data_sets",
    "image",
    "images",
    "partitions",
    "row",
    "rows",
]

_IMAGES: Final = 48
_SIZES: Final = {"small": 256, "large": 1600}
# Above this number, a cell of the map represents several partitions.
_CELLS: Final = 2048
_CELLS_A_ROW: Final = 64


def data_sets(request: ViewRequest) -> Response:
    """The data sets and the other caches."""
    with request.cluster.client() as client:
        manifests = list_manifests(client)
        caches = request.cluster.figures.get("caches", lambda: list_caches(client))
        nodes = len(client.nodes())
    owned = {m.cache for m in manifests} | {m.index for m in manifests}
    return request.pages.page(
        "data_sets.html",
        section="data",
        manifests=manifests,
        splits={m.name: _splits(m) for m in manifests},
        others=[c for c in caches if c["name"] not in owned],
        nodes=nodes,
        rows=sum(m.rows for m in manifests),
        nbytes=sum(m.nbytes for m in manifests),
    )


def rows(request: ViewRequest) -> Response:
    """A page of rows with a histogram over each column."""
    data, filters = _data_set(request)
    after, count = request.optional("after"), data.page_rows()
    with request.cluster.client() as client:
        page = data.page(client, after, filters, count)
    before = None
    if data.numbered and data.by_number and after is not None and not filters:
        # Keys are 0, 1, 2 ..., so the previous page is known; -1 is the beginning.
        before = str(max(-1, data.parse_key(after) - count))  # type: ignore[operator]
    return request.pages.page(
        "rows.html",
        **_common(data, "rows"),
        sample=open_sample(request.cluster, data),
        filters=filters,
        texts=[one.text for one in filters],
        page=page,
        after=after,
        before=before,
        can_go=data.by_number,
    )


def row(request: ViewRequest) -> Response:
    """One row with all its values."""
    data, _ = _data_set(request)
    ref = ("at", request.text("at")) if request.optional("at") else ("key", request.text("key"))
    found = data.row(ref)
    if found is None:
        raise KeyNotFound(f"{data.name}: row {ref[1][:80]!r} does not exist", hint="it may be gone")
    fields = [(f, type_name(f), found.values[f.name]) for f in data.fields]
    return request.pages.page(
        "row.html",
        **_common(data, "rows"),
        row=found,
        fields=fields,
        frame=frame_of(data, found.values),
        neighbours=_neighbours(data, found.key),
    )


def images(request: ViewRequest) -> Response:
    """A grid of images with labels and boxes."""
    data, filters = _data_set(request)
    if data.picture is None:
        raise ConfigError(f"{data.name}: no field contains images")
    with request.cluster.client() as client:
        page = data.page(client, request.optional("after"), filters, data.page_rows(_IMAGES))
    tiles = [
        (one, _caption(data, one.values), frame_of(data, one.values))
        for one in page.rows
        if one.values[data.picture] is not None
    ]
    labels: tuple[Bar, ...] = ()
    if data.label is not None and (
        head := open_sample(request.cluster, data).heads.get(data.label)
    ):
        labels = tuple(bar for bar in head.bars if bar.filters)
    return request.pages.page(
        "images.html",
        **_common(data, "images"),
        tiles=tiles,
        labels=labels,
        filters=filters,
        texts=[one.text for one in filters],
        page=page,
        after=request.optional("after"),
    )


def image(request: ViewRequest) -> Response:
    """One image, encoded again."""
    data, _ = _data_set(request)
    if data.picture is None:
        raise ConfigError(f"{data.name}: no field contains images")
    size = _SIZES.get(request.optional("size") or "small", _SIZES["small"])
    ref = ("at", request.text("at")) if request.optional("at") else ("key", request.text("key"))
    found = data.row(ref)
    if found is None:
        raise KeyNotFound(f"{data.name}: row {ref[1][:80]!r} does not exist")
    content, kind = encoded_picture(found.values[data.picture], size)
    return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def partitions(request: ViewRequest) -> Response:
    """The distribution of the rows."""
    data, _ = _data_set(request)
    with request.cluster.client() as client:
        key = ("spread", data.version)
        spread: Spread = request.cluster.figures.get(key, lambda: spread_of(client, data))
    each = -(-len(spread.parts) // _CELLS) or 1
    cells = [
        _cell(spread.parts[i : i + each], spread.most) for i in range(0, len(spread.parts), each)
    ]
    return request.pages.page(
        "partitions.html",
        **_common(data, "partitions"),
        spread=spread,
        cells=cells,
        each=each,
        across=min(_CELLS_A_ROW, max(8, len(cells))),
    )


def about(request: ViewRequest) -> Response:
    """Fields, splits, and the record of the load."""
    data, _ = _data_set(request)
    return request.pages.page(
        "about.html",
        **_common(data, "about"),
        keys=[(field, type_name(field)) for field in data.key_fields],
        fields=[(field, type_name(field)) for field in data.fields],
        left_out=data.left_out,
        splits=[] if data.manifest is None else _splits(data.manifest),
        backups=None if data.manifest is None else data.manifest.options.backups,
    )


def _data_set(request: ViewRequest) -> tuple[View, tuple[Filter, ...]]:
    data = open_data_set(request.cluster, request.text("data"))
    return data, data.filters(request.values_of("f"))


def _common(data: View, tab: str) -> dict[str, Any]:
    return {"section": "data", "tab": tab, "data": data, "manifest": data.manifest}


def _caption(data: View, values: dict[str, Any]) -> str:
    if data.label is None or values.get(data.label) is None:
        return ""
    return data.class_name(values[data.label])


def _neighbours(data: View, key: Any) -> list[tuple[str, int]]:
    """Return name and key of the previous and next row, if keys are 0, 1, 2 ..."""
    count = data.numbered
    if count is None or not isinstance(key, int):
        return []
    near = (("Previous", key - 1), ("Next", key + 1))
    return [(name, other) for name, other in near if 0 <= other < count]


def _cell(parts: tuple[Part, ...], most: int | None) -> dict[str, Any]:
    rows = [part.rows for part in parts if part.rows is not None]
    largest = max(rows) if rows else None
    share = 1.0 if largest is None or not most else largest / most
    return {
        "first": parts[0].number,
        "last": parts[-1].number,
        "rows": sum(rows) if rows else None,
        "share": round(0.12 + 0.88 * share, 3),
        "owner": parts[0].owner,
    }


def _splits(manifest: Manifest) -> list[dict[str, Any]]:
    """Return name, share and number of rows of each split."""
    found = []
    for division in manifest.splits:
        counts = division.counts(manifest.version)
        for i, name in enumerate(division.names):
            rows = None if counts is None else sum(counts[i])
            share = float(division.fractions[i])
            found.append({"name": name, "share": share, "rows": rows, "by": division.by})
    return found


# Open data sets; each is opened once, and again after a change


def open_data_set(cluster: Cluster, name: str) -> View:
    """Return an open data set, reused while it is unchanged; raises as `open_view`."""
    with cluster.client() as client:
        version = version_of(client, name)
    found: View = cluster.opened.get(version, lambda: open_view(cluster.reading, version[0]))
    return found


def open_sample(cluster: Cluster, data: View) -> Sample:
    """Return the histograms of a version of a data set; computed once."""
    found: Sample = cluster.samples.get(data.version, lambda: sample_of(data))
    return found
