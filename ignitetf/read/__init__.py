"""The read path: partitions to pages to columns to `tf.data`.

    plan -> scan -> reader -> dataset

`plan` says which partitions in which order, `scan` fetches their pages over one or several
connections and survives the loss of a node, `reader` turns them into batches of columns, and
`dataset` hands those to TensorFlow. Only `dataset` imports TensorFlow.
"""
