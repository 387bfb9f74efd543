"""Training with parameter servers: the chief reads rows and hands out steps, workers compute.

Run `ignitetf node start` and `ignitetf load mnist` first. Then

    ignitetf launch -n 2 --ps 1 parameter_servers.py
"""

import keras
import tensorflow as tf

from ignitetf import IgniteDataset

BATCH, STEPS = 64, 60

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    )
    server.join()  # until the chief has ended

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def batches():
    """Make the pipeline of a worker: all rows, again and again, in an order of its own."""
    # Whichever worker is free takes the next step, so there are no shards and no epochs. Python
    # code in a pipeline, as here, runs in the chief: the rows go through it.
    rows = IgniteDataset("MNIST_TRAIN", as_supervised=True, shuffle=1, shard=(0, 1))
    return rows.batch(BATCH, drop_remainder=True).repeat()


@tf.function
def step(iterator):
    def replica(images, labels):
        with tf.GradientTape() as tape:
            found = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return strategy.run(replica, args=next(iterator))


iterator = iter(coordinator.create_per_worker_dataset(batches))
losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
coordinator.join()
values = [float(loss.fetch()) for loss in losses]
first, last = sum(values[:10]) / 10, sum(values[-10:]) / 10
print(f"{STEPS} steps, loss {first:.3f} at first, {last:.3f} at last")
