"""What `repair_keras` touches, without training: modules, versions, faults."""

import json
import subprocess
import sys
import types

from ignitetf.post_import import when_imported
from ignitetf.read.tf.cluster import TESTED, TRAINER
from ignitetf.train import repair_keras


def trainer_of(build):
    trainer = types.ModuleType(TRAINER)
    trainer.TensorFlowTrainer = type("Trainer", (), {"_maybe_symbolic_build": build})
    return trainer


def faulty(self, iterator=None, data_batch=None):
    return "MEAN"


def mended(self, iterator=None, data_batch=None):
    return "first"


def repaired(monkeypatch, capsys, build, version):
    """Whether a Keras of that version, with that method, is repaired, and what is said."""
    trainer = trainer_of(build)
    trainer.reduce_per_replica = print
    trainer.TFEpochIterator = type("Iterator", (), {"_enumerate_iterator": print})
    number = types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "keras.src.version", number)
    monkeypatch.setitem(sys.modules, TRAINER, trainer)
    for _ in range(2):
        repair_keras()
    changed = trainer.TensorFlowTrainer._maybe_symbolic_build is not build
    assert (trainer.reduce_per_replica is not print) == changed
    return changed, capsys.readouterr().err


def test_only_tested_versions_with_the_fault_are_repaired(monkeypatch, capsys):
    tested = min(TESTED)
    done, said = repaired(monkeypatch, capsys, faulty, tested)
    assert done and said.count("\n") == 1 and tested in said and "is repaired" in said
    assert repaired(monkeypatch, capsys, mended, tested) == (False, "")
    assert repaired(monkeypatch, capsys, mended, "99.0") == (False, "")
    done, said = repaired(monkeypatch, capsys, faulty, "99.0")
    assert not done and "99.0 is not repaired" in said and tested in said


def test_nothing_is_imported_and_no_module_is_waited_for_twice(tmp_path, monkeypatch):
    code = (
        "import sys, json; from ignitetf.train import repair_keras; repair_keras();"
        "print(json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(out.stdout)) & {"tensorflow", "keras", "numpy", "jax"}
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []

    def note(module):
        seen.append(module.value)

    for _ in range(2):
        when_imported("waited_for", note)
    assert seen == []
    import waited_for

    assert seen == [1]
    when_imported("waited_for", note)
    assert seen == [1, 1] and waited_for.value == 1
