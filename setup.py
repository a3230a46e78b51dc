"""Which packages there are; everything else about packaging is in pyproject.toml.

cli/, recipes/ and datasets/ lie beside diarize/ in the checkout and inside it in the wheel, which pyproject.toml alone
can only say together with a list of every package.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["diarize", "diarize.*"]), "diarize.cli", "diarize.recipes", "diarize.datasets"],
    package_dir={"diarize.cli": "cli", "diarize.recipes": "recipes", "diarize.datasets": "datasets"},
)
