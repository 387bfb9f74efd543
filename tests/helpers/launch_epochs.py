"""A script that reads epochs in a group, and what its steps say of the keys."""

import json

# Workers read in global steps, in lockstep as with a strategy; the chief keeps the position.
EPOCHS = """
from pathlib import Path
from ignitetf import open_rows
config = json.loads(os.environ["TF_CONFIG"]) if "TF_CONFIG" in os.environ else None
count = len(config["cluster"]["worker"]) if config else 1
attempt = os.environ["IGNITETF_ATTEMPT"]
server = listen() if config else None
at = Path("state.json")
seen = json.loads(at.read_text()) if at.exists() else {"step": 0, "epoch": 0, "state": None}
step, epoch, state = seen["step"], seen["epoch"], seen["state"]
while epoch < 2:
    rows = open_rows("DATA", order="global", global_batch=20, shuffle=3, epoch=epoch)
    batches = (rows.resume(state) if state else rows).batches()
    for batch in batches:
        mine = Path("keys", f"{epoch}-{step}", attempt)
        mine.mkdir(parents=True, exist_ok=True)
        (mine / f".{number}").write_text(json.dumps(batch["key"].tolist()))
        (mine / f".{number}").rename(mine / f"{number}of{count}")
        while len(list(mine.glob("*of*"))) < count: time.sleep(0.005)
        step, state = step + 1, batches.state()
        if number == 0:
            Path("new").write_text(json.dumps({"step": step, "epoch": epoch, "state": state}))
            Path("new").rename(at)
        print("step", epoch, step)
        time.sleep(0.05)
    epoch, state, step = epoch + 1, None, 0
"""


def keys_of_epochs(folder):
    """Keys of each epoch: of each step those of its last attempt that all workers took."""
    found = {}
    for step in (folder / "keys").iterdir():
        epoch = step.name.partition("-")[0]
        for attempt in sorted(step.iterdir(), key=lambda path: -int(path.name)):
            files = list(attempt.glob("*of*"))
            if files and len(files) == int(files[0].name.partition("of")[2]):
                keys = found.setdefault(epoch, [])
                for file in files:
                    keys += json.loads(file.read_text())
                break
    return {epoch: sorted(keys) for epoch, keys in found.items()}
