"""Compiles the message catalogues: `.po` files are kept, the `.mo` files that gettext reads are built from them.

They are written beside their sources, where an editable install reads them and a wheel collects them. A package index has
none of the files that README.md links to: there the links are plain words.
All else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LOCALES = Path(__file__).parent / "src" / "onecard" / "report" / "locales"


class BuildWithCatalogues(build_py):
    def run(self) -> None:
        for source in sorted(LOCALES.glob("*/LC_MESSAGES/*.po")):
            with source.open("rb") as po, source.with_suffix(".mo").open("wb") as mo:
                write_mo(mo, read_po(po))
        super().run()


def index_page() -> str:
    """README.md without pictures and links to files of this folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    cmdclass={"build_py": BuildWithCatalogues},
    long_description=index_page(),
    long_description_content_type="text/markdown",
)
