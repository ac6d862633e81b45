"""Python imports this by itself where its folder is on PYTHONPATH; NCPIPE_FAULT says what is to happen."""

import os

from faults import arm

if "NCPIPE_FAULT" in os.environ:
    root, log, at, kind = os.environ["NCPIPE_FAULT"].split(os.pathsep)
    arm(root, log, int(at), kind)
