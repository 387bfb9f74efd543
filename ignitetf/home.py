"""The folder for data that outlive a command: nodes, jars, profiles, downloads."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ignitetf_home"]


def ignitetf_home() -> Path:
    """Return ignitetf's folder: `IGNITETF_HOME`, otherwise one in the user's data folder."""
    if home := os.environ.get("IGNITETF_HOME"):
        return Path(home).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("ignitetf", appauthor=False))
