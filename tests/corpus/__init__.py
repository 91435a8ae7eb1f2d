"""Failed torchrun jobs, made on this machine, with the truth written by what made them fail. See docs/en/corpus.md."""
