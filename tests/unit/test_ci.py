"""The locations that say what is checked, and on which versions: they agree."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.present import present

yaml = pytest.importorskip("yaml")
packaging = pytest.importorskip("packaging.requirements")

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOW, NIGHTLY, RELEASE, SITE = (
    yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    for name in ("ci.yml", "nightly.yml", "release.yml", "docs.yml")
)
CHECK = WORKFLOW["jobs"]["check"]


def recipe(target: str) -> list[str]:
    """Return the commands of a target that has one command on each line."""
    block = re.search(rf"(?m)^{target}:.*\n((?:\t.*\n)+)", MAKEFILE)
    assert block, f"no target {target}"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in block[1].splitlines()]


def pairs() -> set[tuple[str, str]]:
    """Return the Pythons and PySparks that the workflow runs on."""
    matrix = CHECK["strategy"]["matrix"]
    product = {(python, spark) for python in matrix["python"] for spark in matrix["pyspark"]}
    return product | {(each["python"], each["pyspark"]) for each in matrix["include"]}


def test_a_commit_is_checked_by_the_commands_of_make_check():
    """The hooks for commits run what `make check` runs, in its order, on the whole checkout."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]

    assert recipe("check") == [hook["entry"] for hook in hooks]
    for hook in hooks:
        assert ("system", True, False) == (
            hook["language"],
            hook["always_run"],
            hook["pass_filenames"],
        )


def test_the_workflow_makes_what_decides_whether_a_change_lands():
    """The workflow's last steps are the targets of `.ci/run`, one each, in the same order."""
    (command,) = re.findall(r"(?m)^exec make (.+)$", (ROOT / ".ci/run").read_text())
    targets = command.split()

    assert [f"make {target}" for target in targets] == [
        step["run"] for step in CHECK["steps"][-len(targets) :]
    ]


def test_the_workflow_runs_on_every_python_of_the_set_up():
    """A Python that the set-up takes is checked, and no other."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts/setup_env.py")
    setup_env = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(setup_env)

    assert {setup_env.dotted(version) for version in setup_env.SUPPORTED} == {
        python for python, _ in pairs()
    }


def test_the_workflow_runs_on_pysparks_that_the_package_allows():
    """Every PySpark of the matrix fits pyproject.toml, and each pinned one is among them."""
    (wanted,) = re.findall(r'"(pyspark[<>=~!][^"]*)"', PYPROJECT)
    allowed = packaging.Requirement(wanted).specifier
    pinned = re.findall(r"(?m)^pyspark==([^;\s]+)", (ROOT / "constraints.txt").read_text())
    tried = {spark for _, spark in pairs()}

    assert [] == [spark for spark in tried if spark not in allowed]
    assert {*pinned} <= tried


def test_the_workflow_chooses_the_pyspark_of_its_matrix():
    """
    The step that chooses PySpark changes each of its pins, keeps their markers, and touches no other.
    """
    (step,) = (step for step in CHECK["steps"] if "PYSPARK" in step.get("env", {}))
    before, after = present(re.search(r"s/(.+)/(.+)/", step["run"])).groups()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    changed = [re.sub(before, after.replace("$PYSPARK", "9.9.9"), pin) for pin in pins]

    for pin, now in zip(pins, changed, strict=True):
        name, _, rest = pin.partition("==")
        marker = re.sub(r"^[^;]+", "", rest)
        assert (f"pyspark==9.9.9{marker}" if name == "pyspark" else pin) == now
    assert pins != changed


def test_the_workflow_tries_every_spark_that_is_promised():
    """
    The lane of versions and the script have the same Sparks, all allowed; what the page says was found
    on some of them, with every row and without a failure.
    """
    spec = importlib.util.spec_from_file_location("versions", ROOT / "scripts/versions.py")
    versions = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(versions)
    (wanted,) = re.findall(r'"(pyspark[<>=~!][^"]*)"', PYPROJECT)
    allowed = packaging.Requirement(wanted).specifier
    begin, end = map(re.escape, versions.MARKS)
    page = present(re.search(rf"(?s){begin}\n(.*?)\n{end}", versions.PAGE.read_text()))[1]
    head, _, *rows = page.splitlines()
    tests = re.findall(r"(?m)^def (test_\w+)", (ROOT / versions.COMMANDS).read_text())
    listed = {test for row in versions.ROWS.values() for test in row.tests}

    assert [*versions.VERSIONS] == WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["spark"]
    assert [] == [each for each in versions.VERSIONS if each not in allowed]
    columns = [cell.strip() for cell in head.split("|")[2:-2]]
    assert [each for each in versions.VERSIONS if each in columns] == columns
    assert versions.VERSIONS[0] in columns
    assert [] == [test for test in tests if test not in listed]
    assert [] == [row for row in rows if versions.FAILED in row]
    assert [(row.label, f"`{name}`") for name, row in versions.ROWS.items()] == [
        (cells[1].strip(), cells[-2].strip()) for cells in (row.split("|") for row in rows)
    ]


def test_every_test_runs_somewhere():
    """What the check of a commit leaves out, for it takes too long, runs every night."""
    (job,) = NIGHTLY["jobs"].values()

    assert ["test-all", "soak"] == job["strategy"]["matrix"]["target"]
    assert "make ${{ matrix.target }}" == job["steps"][-1]["run"]
    for target in ("test-all", "soak"):
        assert recipe(target)


def test_the_workflows_may_only_read():
    """A workflow's token can do nothing but read the code, and stays in no checkout."""
    for workflow in (WORKFLOW, NIGHTLY):
        assert {"contents": "read"} == workflow["permissions"]
        for job in workflow["jobs"].values():
            (checkout,) = (step for step in job["steps"] if "checkout" in step.get("uses", ""))
            assert "permissions" not in job
            assert checkout["with"]["persist-credentials"] is False


def test_only_jobs_without_our_code_may_write():
    """Each permission is where it is used, and none where code of the repository is executed."""
    allowed = {
        ("attest", "attestations"),
        ("attest", "id-token"),
        ("publish", "id-token"),
        ("release", "contents"),
    }
    for workflow, expected in (
        (RELEASE, allowed),
        (SITE, {("publish", "id-token"), ("publish", "pages")}),
    ):
        assert {"contents": "read"} == workflow["permissions"]
        given = {
            (name, permission)
            for name, job in workflow["jobs"].items()
            for permission in job.get("permissions", {})
        }
        assert expected == given
        for name, job in workflow["jobs"].items():
            checkouts = [step for step in job["steps"] if "checkout" in step.get("uses", "")]
            assert (name == "build") == bool(checkouts)
            assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_an_upload_waits_for_the_whole_check():
    """No file reaches PyPI that `make release-check` has not built, or without attestations."""
    jobs = RELEASE["jobs"]
    runs = [step.get("run") for step in jobs["build"]["steps"]]

    assert "make release-check" in runs
    assert ("build", "attest", "publish") == tuple(
        jobs[name]["needs"] for name in ("attest", "publish", "release")
    )
    assert "pypi" == jobs["publish"]["environment"]["name"]
    assert recipe("release-check")


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=str)
def test_an_action_is_pinned_by_its_digest(path: Path):
    """A tag can be moved to other code; the version is a comment for people and dependabot."""
    uses = re.findall(r"(?m)^\s+(?:- )?uses: (.+)$", path.read_text())

    assert uses
    assert [] == [
        each for each in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)
    ]


def test_the_workflows_use_one_version_of_an_action():
    """An update reaches all of them."""
    texts = (path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    found = {use for text in texts for use in re.findall(r"uses: ([\w./-]+)@(\w+)", text)}

    assert len({name for name, _ in found}) == len(found)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_every_form_and_workflow_can_be_read(path: Path):
    """A form has what the code host asks of it."""
    content = yaml.safe_load(path.read_text())

    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        assert {"name", "description", "body"} <= set(content)
        ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
        assert sorted({*ids}) == sorted(ids)


def test_the_published_metadata_has_no_tools():
    """Tools for developers are dependency groups, which the set-up installs."""
    extras = present(re.search(r"(?s)\[project.optional-dependencies\]\n(.+?)\n\n\[", PYPROJECT))[1]
    groups = present(re.search(r"(?s)\[dependency-groups\]\n(.+?)\n\n\[tool", PYPROJECT))[1]

    assert not {"check", "dev", "docs", "release", "test"} & {
        *re.findall(r"(?m)^([\w-]+) = ", extras)
    }
    assert {"check", "dev", "docs", "release", "test"} == {*re.findall(r"(?m)^([\w-]+) = ", groups)}
    assert '"--group", "dev"' in (ROOT / "scripts/setup_env.py").read_text()


def test_the_coverage_of_the_protocol_is_of_modules_that_exist():
    """Each line of the list names a module, once: one that has moved is not left out unseen."""
    text = (ROOT / "coverage-protocol.toml").read_text()
    listed = re.findall(r'(?m)^  "(airflow_provider/.+)",$', text)
    found = [{str(path.relative_to(ROOT)) for path in ROOT.glob(each)} for each in listed]
    named = [path for paths in found for path in paths]

    assert listed
    assert [] == [each for each, paths in zip(listed, found, strict=True) if not paths]
    assert len(named) == len({*named})
