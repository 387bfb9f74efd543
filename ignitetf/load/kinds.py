"""The kinds of sources, with the function that opens each and its command-line options.

To add a source, write a module in `sources` and add an entry here: `open_source` finds it, and
`ignitetf load` gets a command for it. The command line imports this module for its help, so it
imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["KINDS", "Location", "Option", "SourceKind", "Split"]

# One part of a data set, such as `train`.
Split = Literal["train", "test"]
# Meaning of the first row of a CSV file.
Header = Literal["row", "none"]


@dataclass(frozen=True)
class Option:
    """A command-line option, passed on as the argument of the same name to the opening function.

    Attributes:
        flag: `--name`, or `--name/--no-name` for a switch.
        help: Help text.
        default: Default value; None leaves it to the function.
        type: Type of the value.
        metavar: Placeholder for the value in the help.
    """

    flag: str
    help: str
    default: Any = None
    type: Any = str
    metavar: str | None = None

    @property
    def name(self) -> str:
        """Name of the argument."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class Location:
    """Location argument of a source on the command line.

    Attributes:
        help: Help text.
        several: True if several locations are allowed.
        option: Option that may replace the argument; if it is set, the user may omit both.
    """

    help: str = "File, folder or fsspec URL."
    several: bool = False
    option: Option | None = None


@dataclass(frozen=True)
class SourceKind:
    """One kind of source.

    Attributes:
        module: Module in `ignitetf.load.sources`, imported on first use.
        function: The function in it that opens a source from a location and options.
        help: First line of the command's help; None for a kind that has no command.
        example: Example arguments of the command.
        location: Location of the records; None if the kind needs none.
        options: Options of the command.
        connects: True if it reads from the cluster, with the connection options of the load.
        splits: True if it has train and test parts, each loaded into its own cache.
    """

    module: str
    function: str
    help: str | None = None
    example: str = ""
    location: Location | None = None
    options: tuple[Option, ...] = ()
    connects: bool = False
    splits: bool = False


_FILES: Final = Location("Files of one table, patterns, folders or fsspec URLs.", several=True)
_KEY: Final = Option("--key", "Key column [default: a running number].", metavar="COLUMN")
_CHANNELS: Final = Option("--channels", "Channels of pixels: 1 grey, 3 RGB, 4 RGBA.", 3, int)
_TABLE_COLUMNS: Final = (
    Option("--columns", "Columns of the table to load [default: all].", metavar="A,B,..."),
    Option("--rename", "Columns to rename.", metavar="OLD=NEW,..."),
)
_SPLIT: Final = Option(
    "--split",
    "Only files of this split, as train-*.parquet [default: all, in the column SPLIT].",
    metavar="NAME",
)
_ENCODING: Final = Option(
    "--encoding",
    "Encoding of the text, such as latin-1 [default: UTF-8, or as its byte order mark says].",
    metavar="NAME",
)

_CLASSES: Final = Option(
    "--classes",
    "File with the names of the classes, one per line, in the order of their numbers.",
    metavar="FILE",
)

_SPLIT_FOLDERS: Final = Option(
    "--split-folders/--no-split-folders",
    "Folders are splits, not classes [default: if all are called train, val, test, ...].",
    type=bool,
)

_CHECK_PIXELS: Final = Option(
    "--check-pixels/--no-check-pixels",
    "Decode each file fully to check it, or check only headers (and CRCs of PNG).",
    True,
    bool,
)
_MAX_PIXELS: Final = Option(
    "--max-pixels", "Images with more pixels are bad records.", 50_000_000, int, "COUNT"
)

KINDS: Final[dict[str, SourceKind]] = {
    "mnist": SourceKind(
        "idx",
        "open_mnist",
        "Load MNIST into MNIST_TRAIN and MNIST_TEST.",
        "--source data/mnist --partitions 8",
        Location(
            "Same as --source.",
            option=Option(
                "--source",
                "Folder with the four files [default: download them].",
                metavar="DIR",
            ),
        ),
        splits=True,
    ),
    "digits": SourceKind(
        "arrays",
        "open_digits",
        "Load scikit-learn's digits into DIGITS_TRAIN, DIGITS_TEST.",
        splits=True,
    ),
    "images": SourceKind(
        "images",
        "images",
        "Load images: one folder per class, or a CSV of paths.",
        "photos --cache PHOTOS --resize 224x224",
        Location("Folder, archive (zip, tar), CSV file, or fsspec URL of one."),
        (
            Option("--labels", "Table of path, label and any other fields.", metavar="CSV"),
            *_TABLE_COLUMNS,
            Option("--types", "Types of columns of the table.", metavar="COLUMN:TYPE,..."),
            _CLASSES,
            _SPLIT_FOLDERS,
            Option("--decode", "Store pixels, not files.", False, bool),
            Option("--resize", "Scale all images; stores pixels.", metavar="HEIGHTxWIDTH"),
            Option(
                "--channels",
                "Channels of pixels: 1 grey, 3 RGB, 4 RGBA [default: 3; 1 for 16-bit grey].",
                type=int,
            ),
            Option(
                "--depth",
                "Bits of stored pixels, 8 or 16 [default: 8; 16 for 16-bit grey].",
                type=int,
            ),
            Option(
                "--orient/--no-orient",
                "Rotate stored pixels as EXIF says; stored files stay unchanged.",
                True,
                bool,
            ),
            _CHECK_PIXELS,
            _MAX_PIXELS,
        ),
    ),
    "voc": SourceKind(
        "voc",
        "voc",
        "Load PASCAL VOC or ImageNet DET images with annotations.",
        "VOC2012 --cache VOC --image-set train",
        Location("Folder or archive (zip, tar)."),
        (
            Option("--image-set", "A list in ImageSets/Main, such as train.", metavar="NAME"),
            Option(
                "--decode",
                "Store pixels, cropped or padded to this size.",
                metavar="HEIGHTxWIDTH",
            ),
            _CHANNELS,
            _CLASSES,
            _SPLIT_FOLDERS,
            _MAX_PIXELS,
        ),
    ),
    "coco": SourceKind(
        "coco",
        "coco",
        "Load COCO images, each with the boxes of its annotations.",
        "annotations/instances_train2017.json --images train2017 --cache COCO",
        Location("Annotation file (JSON), or a folder that has one."),
        (
            Option("--images", "Folder of the images [default: next to the file].", metavar="DIR"),
            Option("--segmentation", "Keep the segmentation of each object, as JSON.", False, bool),
            _MAX_PIXELS,
        ),
    ),
    "yolo": SourceKind(
        "yolo",
        "yolo",
        "Load YOLO images, each with the boxes of its label file.",
        "coco8/data.yaml --cache COCO8",
        Location("data.yaml, or the folder of the data set."),
        (
            Option(
                "--split",
                "Only train, val or test [default: all, in the column SPLIT].",
                metavar="NAME",
            ),
            _MAX_PIXELS,
        ),
    ),
    "npz": SourceKind(
        "arrays",
        "npz",
        "Load NumPy arrays as fields, one record per first index.",
        "train_x.npz --labels train_y.npz --cache TRAIN",
        Location("Files (.npz, .npy).", several=True),
        (
            Option("--labels", "File with the labels.", metavar="FILE"),
            Option("--arrays", "Arrays to load [default: all].", metavar="[FIELD=]ARRAY,..."),
            _KEY,
        ),
    ),
    "csv": SourceKind(
        "csvfile",
        "csv",
        "Load CSV files.",
        "cells.csv --cache CELLS --key CELL_ID",
        _FILES,
        (
            _KEY,
            Option(
                "--types",
                "Column types [default: inferred from the first 4 MB]: varchar, double, decimal(10,2),"
                " ...",
                metavar="COLUMN:TYPE,...",
            ),
            Option("--delimiter", "Character between columns.", ","),
            *_TABLE_COLUMNS,
            Option(
                "--header",
                "Meaning of the first row: headings (row) or a record (none).",
                type=Header,
            ),
            Option("--names", "Names of the columns, with --header none.", metavar="A,B,..."),
            _ENCODING,
            Option("--decimal", "Mark before the fraction of a number.", "."),
            Option("--thousands", "Mark between groups of three digits [default: none]."),
            Option(
                "--null",
                "Further spellings of a missing value, in all columns, such as ?.",
                metavar="WORD,...",
            ),
            _SPLIT,
        ),
    ),
    "parquet": SourceKind(
        "recordbatches",
        "parquet",
        "Load Parquet files.",
        "part-1.parquet part-2.parquet --cache CELLS",
        _FILES,
        (_KEY, *_TABLE_COLUMNS, _SPLIT),
    ),
    "arrow": SourceKind(
        "ipc",
        "arrow",
        "Load Arrow files: IPC files (Feather) and IPC streams.",
        "cells.arrow --cache CELLS",
        _FILES,
        (_KEY, *_TABLE_COLUMNS, _SPLIT),
    ),
    "jsonl": SourceKind(
        "jsonfile",
        "jsonl",
        "Load JSON files: JSON Lines, or an array of objects.",
        "cells.jsonl --cache CELLS --columns ID,NAME",
        _FILES,
        (_KEY, *_TABLE_COLUMNS, _ENCODING, _SPLIT),
    ),
    "tfrecord": SourceKind(
        "tfrecord",
        "tfrecord",
        "Load TFRecord files, or a tensorflow_datasets folder.",
        "train.tfrecord --cache TRAIN",
        _FILES,
        (
            Option(
                "--features",
                "Features to load [default: all].",
                metavar="NAME:TYPE[SHAPE],...",
            ),
            _KEY,
            _SPLIT,
        ),
    ),
    "webdataset": SourceKind(
        "webdataset",
        "webdataset",
        "Load WebDataset shards (tar files).",
        "shards-*.tar --cache TRAIN",
        _FILES,
        (_KEY, _CHECK_PIXELS, _MAX_PIXELS),
    ),
    "idx": SourceKind(
        "idx",
        "idx",
        "Load IDX files, the format of MNIST.",
        "images-idx3-ubyte --labels labels-idx1-ubyte --cache LETTERS",
        Location(),
        (Option("--labels", "IDX file with the labels.", metavar="FILE"),),
    ),
    "sql": SourceKind(
        "sqlrows",
        "sql",
        "Load the rows of a SELECT over tables and data sets.",
        '"SELECT I.IMAGE, D.AGE FROM SCANS I JOIN PATIENTS D ON I.PID = D.ID" --cache AGED',
        Location("The SELECT."),
        (_KEY,),
        connects=True,
    ),
    "records": SourceKind("records", "records"),
    "stream": SourceKind("recordbatches", "stream"),
}
