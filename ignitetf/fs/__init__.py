"""The file system `igfs://`: files as chunks in a cluster, seen by TensorFlow and fsspec."""
