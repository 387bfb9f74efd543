"""The load path: a source of records into a cache, and a manifest that describes it.

source -> writer -> cache -> manifest

`loader` is the entry point, `sources` reads files and arrays. Nothing here imports TensorFlow.
"""
