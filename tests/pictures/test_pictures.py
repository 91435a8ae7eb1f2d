"""The pictures of the documents show what the commands print now."""

from __future__ import annotations

import pytest

from tests.pictures.scenes import SCENES, made, normal


@pytest.mark.parametrize("name", SCENES)
def test_the_pictures_are_those_of_a_run_today(name: str) -> None:
    """If this fails: `make pictures PICTURES=NAME`, and look at them."""
    for file, picture in made(name):
        assert normal(file.read_text("utf-8")) == normal(picture), file.name
