"""The answer of `atlctl stacks`: for people and for programs."""
