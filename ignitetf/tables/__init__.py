"""Creates, describes, lists and removes caches, SQL tables and the manifests of data sets."""
