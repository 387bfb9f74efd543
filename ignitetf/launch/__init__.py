"""Distributed training jobs: an unchanged script in several processes, started, watched and ended.

spec -> job (checks) -> **supervisor** (attempts) -> group (processes of one attempt) -> outcome

`worker` is what each process runs around the script. It imports nothing beyond the standard
library before the script does.
"""
