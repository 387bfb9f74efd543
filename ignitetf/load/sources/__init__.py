"""Sources of records: read files, arrays and iterables as column batches with a schema."""

from ignitetf.load.kinds import KINDS
from ignitetf.load.sources.base import BadRecord, Source, open_source

__all__ = ["KINDS", "BadRecord", "Source", "open_source"]
