"""fsspec's own abstract suite against `igfs://` on a real node: copy, get, put, open, pipe."""

import posixpath
import uuid

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from ignitetf.fs.filesystem import IgniteFileSystem

pytestmark = pytest.mark.node


class IgniteFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, address):
        return IgniteFileSystem(address=address, name="FSTEST")

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def fs_path(self, fs):
        path = f"/contract-{uuid.uuid4().hex[:8]}"
        fs.mkdir(path)
        yield path
        fs.rm(path, recursive=True)

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(AbstractCopyTests, IgniteFixtures):
    pass


class TestGet(AbstractGetTests, IgniteFixtures):
    pass


class TestPut(AbstractPutTests, IgniteFixtures):
    pass


class TestOpen(AbstractOpenTests, IgniteFixtures):
    pass


class TestPipe(AbstractPipeTests, IgniteFixtures):
    pass
