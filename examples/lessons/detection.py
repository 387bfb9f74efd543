"""Detection images, decoded during the training: an asynchronous pipeline, drawn as a plot.

python examples/lessons/detection.py VOC_FOLDER [--images N] [--plot FILE.svg]
"""

import argparse
import statistics
import time

import tensorflow as tf

from ignitetf import IgniteDataset, load_dataset
from ignitetf.load.sources import open_source

SIDE, BATCH, CACHE = 160, 16, "LESSON_CELLS"


def prepare(files, labels, classes):
    """Pixels of JPEG files and one-hot labels; when, in seconds."""

    def pixels(file):
        image = tf.io.decode_jpeg(file, channels=3)
        image = tf.image.resize_with_crop_or_pad(image, SIDE, SIDE)
        return tf.image.per_image_standardization(image)

    began = tf.timestamp()
    with tf.control_dependencies([began]):
        images = tf.map_fn(pixels, files, fn_output_signature=tf.float32)
    with tf.control_dependencies([images]):
        ended = tf.timestamp()
    return images, tf.one_hot(labels, classes), tf.stack([began, ended])


def pipeline(classes, *, ahead):
    """Batches of (images, labels, times); with `ahead` the next ones are made meanwhile."""
    rows = IgniteDataset(CACHE, fields=["IMAGE", "LABEL"], as_supervised=True, shuffle=1)
    batches = rows.batch(BATCH).map(lambda files, labels: prepare(files, labels, classes))
    return batches.prefetch(2) if ahead else batches


def build(classes):
    """A small network and one compiled step."""
    keras = tf.keras
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return model, optimizer, step


def epoch(batches, step):
    """Train once; return (input, training) intervals in seconds, and the last loss."""
    inputs, training, loss = [], [], float("nan")
    for images, labels, times in batches:
        began = time.time()
        loss = float(step(images, labels))
        training.append((began, time.time()))
        inputs.append(tuple(times.numpy()))
    return inputs, training, loss


def draw(path, runs):
    """A row for the input and one for the training of each run, over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    axis, ticks = figure.subplots(), []
    for number, (name, (inputs, training)) in enumerate(runs.items()):
        zero = min(inputs[0][0], training[0][0])
        for place, (what, spans, colour) in enumerate(
            (("input", inputs, "tab:blue"), ("training", training, "tab:orange"))
        ):
            row = -(2.6 * number + place)
            axis.broken_barh(
                [(a - zero, b - a) for a, b in spans], (row - 0.4, 0.8), color=colour, ec="white"
            )
            ticks.append((row, f"{name}: {what}"))
    axis.set_yticks([row for row, _ in ticks], [label for _, label in ticks])
    axis.set_xlabel("seconds of one epoch")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--images", type=int, help="the first ones only")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoints", default="checkpoints", help="a folder, also igfs:///...")
    parser.add_argument("--plot")
    given = parser.parse_args()
    source = open_source("voc", given.folder)
    load_dataset(source, CACHE, partitions=8, if_exists="replace", limit=given.images)
    classes = len(source.class_names)  # the background is one of them, number 0
    model, optimizer, step = build(classes)
    saved = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer), given.checkpoints, max_to_keep=2
    )
    ways, seconds, runs = {"in turn": False, "ahead": True}, {"in turn": [], "ahead": []}, {}
    for number in range(given.epochs + 1):
        for name in sorted(ways, reverse=number % 2):
            began = time.perf_counter()
            inputs, training, loss = epoch(pipeline(classes, ahead=ways[name]), step)
            seconds[name].append(time.perf_counter() - began)
            runs[name] = (inputs, training)
        print(f"epoch {number}: loss {loss:.3f}, {saved.save()}")
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.2f} s an epoch")
    print(f"in turn takes {medians['in turn'] / medians['ahead']:.2f} times as long")
    if given.plot:
        draw(given.plot, runs)


if __name__ == "__main__":
    main()
