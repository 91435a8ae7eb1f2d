"""The output of a diagnosis: labelled rows in two languages for people, and the JSON document for programs."""
