"""Examples of property tests: the same in each test run, others in each soak run."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.internal.conjecture import providers


def settle() -> None:
    """A change fails for what it does, not for what chance has found: `house` repeats, `search` is for `make soak`.

    Hypothesis also draws the constants of all modules that are loaded, even if it is derandomized: then examples would
    depend on the tests that ran before, and on any constant anywhere.
    """
    settings.register_profile("house", deadline=None, database=None, derandomize=True)
    settings.register_profile("search", deadline=None, database=None, derandomize=False)
    settings.load_profile("house")
    if (found := getattr(providers, "_get_local_constants", None)) is None:
        return
    none = providers._local_constants

    def constants() -> object:
        return none if settings.get_current_profile_name() == "house" else found()

    providers._get_local_constants = constants  # type: ignore[assignment]
