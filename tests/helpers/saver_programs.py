"""Programs that save checkpoints until they are killed.

python saver_programs.py TOOL URL

Step N saves arrays that are filled with N. Each step that the tool called complete is printed.
"""

import itertools
import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402

SHAPES = {"a": (700, 700), "b": (300,), "c": (512, 1024)}


def arrays(step):
    return {name: np.full(shape, step, np.float32) for name, shape in SHAPES.items()}


def orbax(url):
    import orbax.checkpoint as ocp

    from ignitetf.fs.orbax import tree_handler

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    manager = ocp.CheckpointManager(url, options=options, item_handlers=tree_handler())
    first = (manager.latest_step() or 0) + 1
    for step in itertools.count(first):
        manager.save(step, args=ocp.args.PyTreeSave(arrays(step)))
        manager.wait_until_finished()
        yield step


def dcp(url):
    import torch
    import torch.distributed.checkpoint as dcp

    for step in itertools.count(1):
        state = {name: torch.from_numpy(a) for name, a in arrays(step).items()}
        dcp.save(state, storage_writer=dcp.FsspecWriter(f"{url}/{step}"))
        yield step


def tensorflow(url):
    """A tf.train.Checkpoint and a file of Keras in each step."""
    import keras
    import tensorflow as tf

    import ignitetf.fs.gfile  # noqa: F401

    variables = {name: tf.Variable(a) for name, a in arrays(0).items()}
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**variables), url, max_to_keep=2)
    model = keras.Sequential([keras.Input((700,)), keras.layers.Dense(700)])
    for step in itertools.count(1):
        for name, a in arrays(step).items():
            variables[name].assign(a)
        model.set_weights([np.full(s, step, np.float32) for s in ((700, 700), (700,))])
        manager.save(checkpoint_number=step)
        model.save(f"{url}/model.keras")
        yield step


if __name__ == "__main__":
    for done in globals()[sys.argv[1]](sys.argv[2]):
        print(done, flush=True)
