"""By hand only (`make soak`): the demo and the property tests, many times over."""

import os
import secrets

# The rough mode of the test API server is another in each soak run (tests/apiserver/README.md).
os.environ.setdefault("ATLCTL_ROUGH_SEED", str(secrets.randbelow(1_000_000)))
