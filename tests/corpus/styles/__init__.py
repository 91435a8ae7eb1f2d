"""Training scripts in four styles that `train.py` does not have; docs/en/corpus.md says what each is for.

They run in the workers' folders with `runtime.py` beside them. Names and texts are seen in tracebacks and logs, so they
give nothing away.
"""
