"""What runs on workers and hosts: Python 3.8, standard library only, imports nothing else of the package."""
