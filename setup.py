"""Compiles the message catalogues: `.po` files are kept, the `.mo` files that gettext reads are built from them.

They are written beside their sources, where an editable install reads them and a wheel collects them.
All else about the package is in pyproject.toml.
"""

from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from setuptools import setup
from setuptools.command.build_py import build_py

LOCALES = Path(__file__).parent / "src" / "onecard" / "report" / "locales"


class BuildWithCatalogues(build_py):
    def run(self) -> None:
        for source in sorted(LOCALES.glob("*/LC_MESSAGES/*.po")):
            with source.open("rb") as po, source.with_suffix(".mo").open("wb") as mo:
                write_mo(mo, read_po(po))
        super().run()


setup(cmdclass={"build_py": BuildWithCatalogues})
