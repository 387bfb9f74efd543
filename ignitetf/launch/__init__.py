"""Distributed training jobs: an unchanged script in several processes, started, watched and ended.

spec -> job (checks) -> **supervisor** (attempts) -> group (processes of one attempt) -> outcome

Each process runs the module `worker`, which runs the script. It imports only the standard library
before the script starts.
"""
