"""The load path: writes a source of records to a cache, with a manifest that describes it.

source -> writer -> cache -> manifest

`loader` is the entry point, `sources` reads files and arrays. Nothing here imports TensorFlow.
"""
