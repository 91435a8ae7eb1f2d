"""`python -m tests.pictures [NAME...]`: makes the pictures of docs/pictures anew, all or those named."""

from __future__ import annotations

import sys

from tests.pictures.scenes import SCENES, made
from tests.pictures.svg import text_of


def main() -> None:
    for name in sys.argv[1:] or SCENES:
        for file, picture in made(name):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(picture, "utf-8")
            print(file.name, text_of(picture), sep="\n")


main()
