"""Feature files with exactly known collapse metrics, to test any implementation with.

`features/*.npz` are the inputs, `expected.json` the answers, README.md the format; `suite` compares. Nothing
here needs the rest of the package: NumPy is enough, and the folder may be copied into another project.
"""
