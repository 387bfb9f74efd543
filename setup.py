"""The parts in C, built into the wheel where a compiler is; all else is in pyproject.toml.

An editable installation has none beside its sources, where they would outlive a change:
`ignitetf.native` builds them on first use.
"""

import importlib.util
import logging
import sys
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("native", ROOT / "ignitetf" / "native.py")
native = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(native)


class BuildNative(Command):
    """Compile each part; what no compiler is there for is left out, and done without, slower."""

    user_options = ()

    def initialize_options(self):
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self):
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self):
        for target, source in self.get_output_mapping().items():
            built = Path(target).resolve()
            built.unlink(missing_ok=True)  # of an earlier build
            try:
                native.build(ROOT / source, built)
                built.chmod(0o755)
            except native.NotBuilt as error:
                logging.warning("%s is left out: %s", source, error)

    def get_source_files(self):
        return [f"ignitetf/{part}" for part in native.PARTS]

    def get_outputs(self):
        return list(self.get_output_mapping())

    def get_output_mapping(self):
        if self.editable_mode:
            return {}
        folder = Path(self.build_lib)
        return {str(folder / Path(s).with_suffix(".so")): s for s in self.get_source_files()}


class Wheel(bdist_wheel):
    """Of one kind of machine where it has parts in C, of every Python in any case."""

    def run(self):
        self.run_command("build")
        parts = self.get_finalized_command("build_native").get_outputs()
        has_parts = any(Path(part).exists() for part in parts)
        self.root_is_pure = not has_parts
        self.distribution.has_ext_modules = lambda: has_parts  # says where they are installed
        super().run()

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


# The stable ABI has the buffer protocol from Python 3.11 on; an older one gets a build of its own.
ABI = "0x030b0000" if sys.version_info >= (3, 11) else None
CORE = Extension(
    "ignitetf._core._native",
    [f"ignitetf/_core/{part}.c" for part in ("block", "landing", "lane", "layout", "module")],
    depends=["ignitetf/_core/core.h"],
    define_macros=[("Py_LIMITED_API", ABI)] if ABI else [],
    py_limited_api=ABI is not None,
    extra_compile_args=["-O3"],
    optional=True,  # nothing needs it yet
)

build.sub_commands.append(("build_native", None))
setup(ext_modules=[CORE], cmdclass={"build_native": BuildNative, "bdist_wheel": Wheel})
