"""Rows as tensors: `IgniteDataset` and what it needs of TensorFlow."""
