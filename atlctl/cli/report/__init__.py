"""The `report` command: collects the evidence, makes the page."""
