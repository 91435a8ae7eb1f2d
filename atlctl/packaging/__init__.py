"""Build what users install: sdist, wheel, and one executable file with its own Python. Runs in a checkout; not shipped.

python -m atlctl.packaging dist FOLDER python -m atlctl.packaging executable FOLDER
"""
