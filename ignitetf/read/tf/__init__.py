"""Rows as tensors: `IgniteDataset` and everything that needs TensorFlow to build it."""
