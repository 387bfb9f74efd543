"""Lightning: a Trainer goes on with exactly the rows that the model was not trained on."""

import logging

import pytest
from helpers.typed_rows import ROWS

lightning = pytest.importorskip(
    "lightning", reason="needs Lightning: pip install 'ignitetf[lightning]'"
)
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore")]

import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint  # noqa: E402

from ignitetf import load_dataset, open_rows  # noqa: E402
from ignitetf.errors import ConfigError, DataChanged  # noqa: E402
from ignitetf.lightning import DataModule  # noqa: E402

BATCH, EPOCHS = 40, 3
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture
def messages_say_their_place_once():
    """Not held here: PyTorch puts the traceback of a worker process into the error's message."""


class Model(lightning.LightningModule):
    """Keeps the keys of each step; fails at the step `fails`."""

    def __init__(self, fails=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fails, self.seen, self.validated = fails, [], []

    def training_step(self, batch, number):
        if (self.current_epoch, number) == self.fails:
            raise KeyError("the step fails")
        self.seen.append((self.current_epoch, number, batch["key"].tolist()))
        return self.layer(batch["val"]["A"].float()[:, None]).mean()

    def validation_step(self, batch, number):
        self.validated += batch["key"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)


def fit(data, *callbacks, checkpoint=None, fails=None, **options):
    """Train; return the model and the Trainer."""
    model = Model(fails)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
        **{"max_epochs": EPOCHS, **options},
    )
    if fails is None:
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    else:
        with pytest.raises(KeyError):
            trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    return model, trainer


def made(name, address, workers=0, loader=None, **options):
    options = {"batch_size": BATCH, "shuffle": 7, "validation": name, **options}
    return DataModule(
        name, address, fields=["A"], loader={"num_workers": workers, **(loader or {})}, **options
    )


def wanted(name, address, epochs=EPOCHS):
    """The steps of a training that nothing interrupts."""
    return [
        (epoch, number, batch["key"].tolist())
        for epoch in range(epochs)
        for number, batch in enumerate(
            open_rows(name, address, shuffle=7, order="global", epoch=epoch).batches(BATCH)
        )
    ]


@pytest.mark.parametrize(
    ("validation", "workers"),
    [({}, 0), ({"val_check_interval": 3}, 0), ({"limit_val_batches": 0}, 3)],
)
def test_a_checkpoint_goes_on_after_its_last_step(
    address, typed_rows, tmp_path, validation, workers
):
    whole = wanted(typed_rows, address)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    model, _ = fit(made(typed_rows, address, workers=2 if workers else 0), saving, **validation)
    assert model.seen == whole
    assert set(model.validated) == (set() if "limit_val_batches" in validation else {*range(ROWS)})
    each = len(whole) // EPOCHS
    steps = (each, each + 3) if workers else (1, each - 1, each, each + 1, each + 4, 2 * each)
    for step in steps:
        data = made(typed_rows, address, workers=workers)
        again, _ = fit(data, checkpoint=tmp_path / f"step={step}.ckpt", **validation)
        assert again.seen == whole[step:]


def test_processes_that_are_spawned_go_on_as_well(address, typed_rows, tmp_path):
    whole = wanted(typed_rows, address)
    spawned = {"multiprocessing_context": "spawn", "persistent_workers": True}
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    fit(made(typed_rows, address), saving, max_steps=4)
    data = made(typed_rows, address, workers=1, loader=spawned, validation=None)
    again, _ = fit(data, checkpoint=tmp_path / "step=4.ckpt")
    assert again.seen == whole[4:]


@pytest.mark.parametrize("fails", [(0, 0), (0, 3), (1, 0), (2, 1)])
def test_a_step_that_failed_is_done_again(address, typed_rows, tmp_path, fails):
    whole = wanted(typed_rows, address)
    data = made(typed_rows, address, workers=2, loader={"persistent_workers": True})
    model, _ = fit(data, OnExceptionCheckpoint(tmp_path, "failed"), fails=fails)
    again, _ = fit(made(typed_rows, address), checkpoint=tmp_path / "failed.ckpt")
    assert model.seen + again.seen == whole


def test_training_goes_on_with_more_epochs(address, typed_rows, tmp_path):
    whole = wanted(typed_rows, address)
    for options in ({"max_epochs": 2}, {"max_steps": len(whole) * 2 // 3}):
        saving = ModelCheckpoint(tmp_path, "end", save_top_k=-1, enable_version_counter=False)
        model, trainer = fit(made(typed_rows, address), saving, **options)
        trainer.save_checkpoint(tmp_path / "after.ckpt")
        for name in ("end", "after"):
            again, _ = fit(made(typed_rows, address), checkpoint=tmp_path / f"{name}.ckpt")
            assert model.seen + again.seen == whole


@pytest.mark.parametrize("step", [7, -1])
def test_a_data_module_that_was_used_begins_again(address, typed_rows, tmp_path, step):
    """A state is of one training: another Trainer gets whole epochs, or those of its checkpoint."""
    whole = wanted(typed_rows, address)
    step %= len(whole)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    data = made(typed_rows, address, validation=None)
    assert fit(data, saving)[0].seen == whole
    resumed, _ = fit(data, checkpoint=tmp_path / f"step={step}.ckpt")
    assert resumed.seen == whole[step:]
    assert fit(data)[0].seen == whole
    model, trainer = fit(data, checkpoint=tmp_path / f"step={step}.ckpt")
    trainer.fit(model, datamodule=data, ckpt_path=tmp_path / "step=3.ckpt")
    assert model.seen == whole[step:] + whole[3:]


def test_global_steps_go_on_on_another_number_of_ranks(address, typed_rows):
    """The steps of two ranks after those of three, and those of one rank that are the same."""

    class Ranked(DataModule):
        def __init__(self, *arguments, rank, **options):
            super().__init__(*arguments, **options)
            self.trainer = _Ranked(*rank)

    def batches(state, ranks, epoch=1, done=0, **options):
        found, states = [], []
        for rank in range(ranks):
            data = Ranked(
                typed_rows,
                address,
                rank=(rank, ranks),
                fields=["A"],
                shuffle=7,
                even="pad",
                **options,
            )
            data.trainer.current_epoch = epoch
            data.load_state_dict(state)
            progress = data.trainer.fit_loop.epoch_loop.batch_progress.current
            progress.processed = 2 if state else 0
            steps = [batch["key"].tolist() for batch in data.train_dataloader()]
            progress.processed = done
            found.append(steps)
            states.append(data.state_dict())
        assert all(one == states[0] for one in states)
        return [
            {key for part in parts for key in part} for parts in zip(*found, strict=True)
        ], states[0]

    whole, state = batches({}, 3, done=2, global_batch=48)
    assert len(whole) > 3
    for ranks in (1, 2, 4):
        rest, _ = batches(state, ranks, global_batch=48)
        assert rest == whole[2:]
    rest, _ = batches(state, 2, batch_size=24)
    assert rest == whole[2:]
    with pytest.raises(ConfigError, match="steps of 48 rows"):
        batches(state, 2, batch_size=20)


class _Ranked:
    """What a DataModule asks of its Trainer."""

    def __init__(self, rank, count):
        self.global_rank, self.world_size, self.current_epoch = rank, count, 0
        self.fit_loop = self.epoch_loop = self.batch_progress = self.current = self
        self.processed = 0


def test_what_cannot_be_is_refused(address, typed_rows, client, cache_name, tmp_path):
    for wrong in (
        {"batch_size": None},
        {"order": "scan"},
        {"shard": (0, 2)},
        {"epoch": 3},
    ):
        with pytest.raises(ConfigError):
            made(typed_rows, address, **wrong)
    ranks = made(typed_rows, address, batch_size=None, global_batch=ROWS - 1)
    ranks.trainer = _Ranked(0, 2)
    with pytest.raises(ConfigError, match="different numbers of batches"):
        ranks.train_dataloader()

    def load(first):
        rows = [{"A": first + i} for i in range(100)]
        load_dataset(rows, cache_name, client=client, if_exists="replace")

    load(0)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    fit(made(cache_name, address), saving, max_steps=1)
    load(1000)
    with pytest.raises(DataChanged):
        fit(made(cache_name, address), checkpoint=tmp_path / "step=1.ckpt")


def test_no_rows_are_no_steps(address, typed_rows):
    model, _ = fit(made(typed_rows, address, where="A < 0", workers=2))
    assert model.seen == model.validated == []
