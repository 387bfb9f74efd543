"""Caches and SQL tables of a cluster: made, described, listed, removed; manifests of data sets."""
