"""The read path: partitions to pages to columns to rows, and to `tf.data`.

plan -> scan -> reader -> rows -> tf

`plan` decides which partitions are read in which order, `scan` fetches their pages over one or
several connections and survives the loss of a node, `reader` turns pages into batches of columns,
and `rows` puts those into the order of an epoch. Only `tf` imports TensorFlow.
"""
