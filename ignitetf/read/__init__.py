"""The read path: from partitions to columns, rows and `tf.data`.

scan_order -> batches -> reader -> reading -> rows -> tf

`scan_order` decides which partitions are read in which order. `reading` requests them through the
core, replaces lost connections, and returns the rows as columns in the order of the plan. `batches`
puts them into the order of an epoch. `rows` is the interface to that epoch. Only `tf` imports
TensorFlow.
"""
