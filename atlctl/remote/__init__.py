"""Code that runs on workers and hosts: Python 3.8, standard library only, no imports from the rest of the package."""
