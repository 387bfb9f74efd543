"""One of two workers, told so by TF_CONFIG; the last line of its output is what it saw, as JSON.

python distributed_programs.py PROGRAM ADDRESS CACHE BATCH
"""

import hashlib
import json
import sys

import tensorflow as tf

from ignitetf import IgniteDataset

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
ADDRESS, CACHE, BATCH = sys.argv[2], sys.argv[3], int(sys.argv[4])

# Pipelines of (image, [label, key]); each is made anew for every use.
OPTIONS = {
    "as it is": {"shuffle": 3},
    "even": {"even": "pad"},
    "by key": {"order": "global", "shuffle": 5},
    # Of 1,071 and 1,052 rows, 68 and 66 steps.
    "uneven": {"where": "LABEL < 7", "batch": 32},
}


def pair(row):
    label = tf.cast(row["val"]["LABEL"], tf.int64)
    return tf.cast(row["val"]["IMAGE"], tf.float32) / 255, tf.stack([label, row["key"]], -1)


def pipeline(options, batch=BATCH):
    options = {"batch": batch, "drop": False, **options}
    batch, drop = options.pop("batch"), options.pop("drop")
    dataset = IgniteDataset(CACHE, addresses=[ADDRESS], **options)
    return dataset.batch(batch, drop_remainder=drop).map(pair)


class Trained:
    """The keys of the rows that come to a loss, step by step."""

    def __init__(self):
        self.steps = []

    def loss(self, wanted, found):
        wanted = tf.cast(wanted, tf.int32)  # Keras makes floats of them
        # Where a model is only being built, this traces and does not run.
        tf.py_function(lambda keys: self.steps.append(keys.numpy().tolist()), [wanted[:, 1]], [])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(wanted[:, 0], found)

    def take(self):
        steps, self.steps = self.steps, []
        return steps


TRAINED = Trained()


def model_of(keras):
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def fit_of(keras, strategy, name):
    return fitted(keras, strategy, pipeline(OPTIONS[name]))[1]


def fitted(keras, strategy, dataset, epochs=1):
    with strategy.scope():
        model = model_of(keras)
        model.compile(keras.optimizers.Adam(1e-3), loss=TRAINED.loss)
    model.fit(dataset, epochs=epochs, verbose=0)
    return model, {
        "steps": TRAINED.take(),
        "weights": digest(model),
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def looped(keras, strategy, distributed, epochs=1):
    """The same training as `fitted`, in a loop of one's own."""
    with strategy.scope():
        model, optimizer = model_of(keras), keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(batch):
        def one(images, wanted):
            with tf.GradientTape() as tape:
                losses = TRAINED.loss(wanted, model(images, training=True))
                loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(one, args=batch)

    for _ in range(epochs):
        for batch in distributed:
            step(batch)
    return {"steps": TRAINED.take(), "weights": digest(model)}


def keras_3(strategy):
    """`fit` repaired, the custom loop and both ways of distributing."""
    import keras

    found = {f"fit, {name}": fit_of(keras, strategy, name) for name in OPTIONS}
    whole = {"even": "drop", "drop": True}
    model, found["fit, whole batches"] = fitted(keras, strategy, pipeline(whole), epochs=2)
    distributed = strategy.experimental_distribute_dataset(pipeline(whole))
    found["loop, whole batches"] = looped(keras, strategy, distributed, epochs=2)
    distributed = strategy.experimental_distribute_dataset(pipeline({}))
    found["loop, as it is"] = looped(keras, strategy, distributed)

    def own(context):
        size = context.get_per_replica_batch_size(BATCH)
        return pipeline({"shard": context}, size)

    distributed = strategy.distribute_datasets_from_function(own)
    found["loop, from a function"] = looped(keras, strategy, distributed)

    model.evaluate(pipeline({}), verbose=0)
    found["evaluate"] = {"steps": TRAINED.take()}
    model.compile(keras.optimizers.SGD(), TRAINED.loss, steps_per_execution=3)
    model.fit(pipeline({}), verbose=0)
    found["fit, three steps at once"] = {"steps": TRAINED.take()}
    rows = model.predict(pipeline({}).map(lambda images, wanted: images), verbose=0)
    return {**found, "predicted": len(rows)}


def legacy(strategy):
    import tf_keras

    return {f"fit, {name}": fit_of(tf_keras, strategy, name) for name in ("as it is", "uneven")}


def unrepaired(strategy):
    import keras

    from ignitetf.errors import ConfigError

    dataset = pipeline({})
    try:
        fitted(keras, strategy, dataset)
    except ConfigError as error:
        return {"error": str(error), "hint": error.hint}
    return {}


if __name__ == "__main__":
    program = sys.argv[1]
    if program == "keras_3":
        from ignitetf.train import repair_keras

        repair_keras()
    made = tf.distribute.MultiWorkerMirroredStrategy()
    print(
        json.dumps({"keras_3": keras_3, "legacy": legacy, "unrepaired": unrepaired}[program](made))
    )
