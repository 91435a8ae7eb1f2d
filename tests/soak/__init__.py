"""By hand only (`make soak`): the demo and the property tests, many times over."""
