"""Labels of rows that are appended to others."""

import numpy as np
import pytest
from source_helpers import everything

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.load.sources.location import ChainSource


def source(names, labels, dtype=np.int32, **more):
    return open_source("records", {"LABEL": np.array(labels, dtype), **more}, class_names=names)


def test_classes_keep_the_numbers_that_are_there_and_new_ones_follow():
    found = source(["ant", "cat", "dog"], [0, 1, 2, -1, 0], BOX_LABELS=[[2, 1], [], [0], [1], []])
    for _ in range(2):  # a load that goes on asks again
        found.use_classes(["dog", "cat"])
        got = everything(found)
        assert found.class_names == ["dog", "cat", "ant"]
        assert got["LABEL"] == [2, 1, 0, -1, 2]
        assert [v.tolist() for v in got["BOX_LABELS"]] == [[0, 1], [], [2], [1], []]
        assert len(found.notes) == 1
        assert "'ant' is 2, not 0, and 1 more" in found.notes[0]


def test_files_that_number_their_classes_by_themselves_are_numbered_alike():
    files = [source(names, [0, 1]) for names in (["cat", "dog"], ["ant", "dog"], ["dog", "cat"])]
    found = ChainSource(files)
    assert found.class_names == ["cat", "dog", "ant"]
    assert everything(found)["LABEL"] == [0, 1, 2, 1, 1, 0]
    found.use_classes(["ant"])
    assert found.class_names == ["ant", "cat", "dog"]
    assert everything(found)["LABEL"] == [1, 2, 0, 2, 2, 1]


@pytest.mark.parametrize("known", [["ant", "cat"], ["ant", "cat", "dog"], ["ant"], []])
def test_classes_that_have_their_numbers_already_keep_them(known):
    found = source(["ant", "cat"], [1, 0])
    found.use_classes(known)
    assert (everything(found)["LABEL"], found.notes) == ([1, 0], [])
    assert found.class_names == (known if len(known) > 2 else ["ant", "cat"])


def test_labels_that_cannot_be_renumbered_are_refused():
    many = [f"c{i}" for i in range(256)]
    for names, labels, known, dtype in (
        (["ant"], [1], ["bee"], np.int32),
        (["ant"], [0], many, np.uint8),
    ):
        found = source(names, labels, dtype)
        found.use_classes(known)
        with pytest.raises(SourceError, match=r"not one of the 1 classes|257 classes do not fit"):
            everything(found)
    with pytest.raises(ConfigError, match="two classes are called 'ant'"):
        source(["ant", "bee"], [0]).use_classes(["ant", "ant"])
