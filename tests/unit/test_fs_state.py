"""The state file of checkpoints: names as protobuf reads them, and no text that it fails at."""

import random

import pytest

from ignitetf.fs.folders import LocalFolder, state_names, state_of

NAMES = ["ckpt-1", "a b", 'q"uote', "back\\slash", "tab\tline\nbell\a", "é", "日本", "😀", "'?%#"]


def text_of(latest, *every):
    lines = [f'all_model_checkpoint_paths: "{one}"' for one in every]
    return "\n".join([f'model_checkpoint_path: "{latest}"', *lines]) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_names_are_what_protobuf_reads_and_writes(name):
    encoding = pytest.importorskip("google.protobuf.text_encoding")
    for as_utf8 in (False, True):
        escaped = encoding.CEscape(name.encode(), as_utf8=as_utf8)
        assert state_names(text_of(escaped, escaped)) == (name, [name])
    kept = state_of(text_of(escaped, "ckpt-0", escaped), "", {name})
    written = kept.split('"')[1] if '"' not in name else kept.splitlines()[0][24:-1]
    assert encoding.CUnescape(written).decode() == name
    assert state_names(kept) == (name, [name])


def test_a_damaged_state_names_something_else_or_nothing():
    rng = random.Random(0)
    whole = text_of("ckpt-2", "ckpt-1", "ckpt-2") + "all_model_checkpoint_timestamps: 1.0\n"
    odd = [
        "\\",
        "\\x",
        "\\u12",
        "\\U0001F600",
        "\\UFFFFFFFF",
        "\\uD800",
        "\\N{DASH}",
        "\udcff",
        '"',
    ]
    for _ in range(3000):
        text = list(whole)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choice([*odd, "é", "\n", "\\400", "\0", "../"])
        _, every = state_names("".join(text))
        kept = state_of("".join(text), "", set(every))
        assert kept is None if not every else state_names(kept)[1] == every


def test_a_file_whose_name_is_no_unicode_is_left_out(tmp_path):
    (tmp_path / "good").write_bytes(b"1")
    (tmp_path / "b\udcffd").write_bytes(b"2")
    folder = LocalFolder(tmp_path)
    assert folder.sizes == {"good": 1}
    assert folder.left_out == {"b\\udcffd": "its name is not valid Unicode"}
