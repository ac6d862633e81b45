"""Values in params.yaml that a shell would run: DVC makes commands of the axes, and none may reach one.

Each test's docstring ends with the fault that would turn it red.
"""

import os

import pytest
from pipeline import ROOT, Clone, Copy

MARK = "INJECTED"
WORDS = f"2; touch {MARK}"

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="the clone's programs are found by a POSIX path"),
]


def test_no_axis_reaches_the_shell_or_leads_out_of_its_folder(swept: Clone, own_copy: Copy) -> None:
    """Whatever DVC is asked to do, one item without what it depends on included. DVC deletes a stage's old
    output before it runs the command.

    Red: `${item.seed}` in a command; or axes that are not checked before the first stage that takes an item.
    """
    clone = own_copy(swept)
    precious = clone.folder / "data" / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    before = clone.digests("data/runs")
    params = clone.params()
    clone.edit_params("sweep.seeds", [0, WORDS])
    alone = clone.run("dvc", "repro", "--single-item", "--glob", "train@alpha-*touch*", check=False)
    assert alone.code != 0
    assert "Invalid value for '--seed'" in alone.err  # all of it is the seed
    assert "sweep.seeds[1]: expected a whole number" in clone.run("dvc", "repro", check=False).err
    hostile = f"`touch {MARK}`"
    experiments = params["experiments"] | {hostile: params["experiments"]["alpha"]}
    seeds, depths = [0, "0/../../../../precious"], [2, f"$(touch {MARK})"]
    sweep = {"experiments": ["alpha", hostile], "depths": depths, "seeds": seeds}
    clone.write_params(params | {"sweep": sweep, "experiments": experiments})
    said = clone.run("dvc", "repro", check=False)
    assert said.code != 0
    assert said.ran in ([], ["code"])
    assert clone.digests("data/runs") == before
    assert (precious / "file").read_text() == "kept"
    assert not list(clone.folder.rglob(MARK))
