"""One request on many workers: bounded runs, deadlines, cancellation, outcomes, folding of equal output."""
