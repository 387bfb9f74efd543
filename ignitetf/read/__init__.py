"""The read path: partitions to pages to columns to rows, and to `tf.data`.

    plan -> scan -> reader -> rows -> tf

`plan` says which partitions in which order, `scan` fetches their pages over one or several
connections and survives the loss of a node, `reader` turns them into batches of columns, `rows`
puts those into the order of an epoch. Only `tf` imports TensorFlow.
"""
