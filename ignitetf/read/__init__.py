"""The read path: from partitions to columns, rows and `tf.data`.

scan_order -> batches -> reader -> reading -> rows -> tf

`scan_order` decides which partitions are read in which order. `reading` requests them, through the core
and over lost connections, and has their rows as columns in the order of the plan. `batches` puts
these into the order of an epoch, which `rows` offers. Only `tf` imports TensorFlow.
"""
