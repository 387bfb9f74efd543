"""A small convolutional network on images and labels of a VOC folder, alone or on several workers.

Run `ignitetf node start` and `ignitetf load voc FOLDER` first. Then

    python voc.py
    ignitetf launch -n 2 voc.py
"""

import keras
import tensorflow as tf

from ignitetf import IgniteDataset
from ignitetf.train import data_parallel

BATCH, HEIGHT, WIDTH, CLASSES = 16, 240, 320, 4


def prepared(row):
    """Return an image and its label; JPEG is decoded by the worker that trains on it."""
    image = tf.io.decode_jpeg(row["val"]["IMAGE"], channels=3)
    image = tf.image.resize_with_crop_or_pad(image, HEIGHT, WIDTH)
    return tf.image.per_image_standardization(image), row["val"]["LABEL"]


group = data_parallel()
keras.utils.set_random_seed(1)
with group.scope():
    model = keras.Sequential(
        [
            keras.Input((HEIGHT, WIDTH, 3)),
            keras.layers.Conv2D(8, 7, strides=4, activation="relu"),
            keras.layers.Conv2D(16, 5, strides=4, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)

images = IgniteDataset("VOC", fields=["IMAGE", "LABEL"], order="global", shuffle=1, even="drop")
batches = images.map(prepared, num_parallel_calls=2).batch(group.batch(BATCH)).prefetch(1)
history = model.fit(batches, epochs=1, shuffle=False, verbose=0).history
weights = sum(float(abs(w).sum()) for w in model.get_weights())
print(f"worker {group.worker}: {model.optimizer.iterations.numpy()} steps, weights {weights!r}")
