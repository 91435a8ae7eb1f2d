"""A diagnosis as people and programs see it: labelled rows in two languages, and the JSON document."""
