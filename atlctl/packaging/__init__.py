"""Builds what users install: sdist, wheel, and the one file that carries its own Python. In a checkout; not shipped.

python -m atlctl.packaging dist FOLDER
python -m atlctl.packaging executable FOLDER
"""
