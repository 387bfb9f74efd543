"""What is refused before anything starts.

spec, client -> **checks** -> ConfigError, CacheNotFound
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from ignitetf import Client
from ignitetf.errors import ConfigError
from ignitetf.explore.cluster import find_data_set
from ignitetf.launch.spec import LaunchSpec

__all__ = ["check_data", "check_spec"]

_MOST: Final = 1024


def check_spec(spec: LaunchSpec) -> None:
    """Raise ConfigError for a script or a group that cannot be run."""
    if sys.platform == "win32":
        raise ConfigError("ignitetf launch needs process groups, which Windows does not have")
    path = Path(spec.script)
    if not path.exists():
        raise ConfigError(f"no script {spec.script!r}", hint=f"the folder is {Path.cwd()}")
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ConfigError(f"{spec.script!r} is no file that can be read")
    if not 1 <= spec.workers <= _MOST or not 0 <= spec.parameter_servers <= _MOST:
        raise ConfigError(f"1 to {_MOST} workers, 0 to {_MOST} parameter servers")
    if spec.elastic is not None and not spec.elastic[0] <= spec.workers <= spec.elastic[1]:
        least, largest = spec.elastic
        raise ConfigError(
            f"{spec.workers} workers are outside --elastic {least}:{largest}",
            hint="-n is the number to begin with",
        )


def check_data(spec: LaunchSpec, client: Client) -> None:
    """Raise an error unless the data set exists and has a row for each worker."""
    if spec.data is None:
        return
    cache, manifest = find_data_set(client, spec.data)
    is_blocks = manifest is not None and manifest.layout == "blocks"
    rows = manifest.rows if manifest is not None and is_blocks else client.cache_size(cache)
    if rows < spec.workers:
        raise ConfigError(
            f"{spec.data} has {rows} rows for {spec.workers} workers",
            hint="start fewer workers, or load more rows",
        )
