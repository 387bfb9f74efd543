"""Data sets to files: image folders, TFRecord, Parquet and WebDataset shards."""
