"""Pictures of the commands for the documents, made of real runs: `python -m tests.pictures`, by `make pictures`.

The text of a picture is that of the run. `test_pictures.py` runs the commands again and compares the words.
"""
