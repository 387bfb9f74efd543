"""Encodes and decodes the bytes of Ignite's thin client protocol, without sockets or TensorFlow."""
