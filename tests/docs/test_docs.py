import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure import approvals, entries, errors, otp, process, telemetry, testing
from tests.support import file_list
from tests.support.doc_examples import examples, failures
from tests.support.doc_links import broken_links

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if any(examples(page.read_text("utf-8")))]
LONGEST_RUN = 50  # seconds: a page that hangs is ended by force

SPAN = re.compile(r"`([^`\n]+)`")
PUBLIC = (perdure, approvals, entries, errors, otp, process, testing)
MODULES = {
    "perdure": perdure,
    "approvals": approvals,
    "errors": errors,
    "otp": otp,
    "process": process,
    "telemetry": telemetry,
}
DOTTED = re.compile(rf"\b({'|'.join(MODULES)})\.(\w+)")
KINDS_OF_ENTRIES = ("host", "py", "service")
# Modules and files that are named, and no attributes of the package
NOT_PUBLIC = ("cli", "integrations", "observe", "web", "toml")
FILE = re.compile(r"\b(?:(?:base|process|testing)/)?[a-z_]+\.py\b")
WALK = re.compile(r"^ *\d+ (\w+\.py) +(?:\w+\.)?(\w+)", re.MULTILINE)
LONGEST_DECISION = 60  # lines: a decision fits on one page


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(*pages: Path) -> str:
    return "\n".join(page.read_text("utf-8") for page in pages)


def with_its_marks(page: Path) -> object:
    """Return a page as a parameter: agent frameworks are there for one interpreter only."""
    marks = [pytest.mark.once] if page.parent.name == "agents" else []
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.parametrize("page", [with_its_marks(page) for page in WITH_EXAMPLES])
def test_the_examples_of_the_page_run_and_print_what_it_says(page: Path) -> None:
    # An OS process for each page: one that hangs can be ended, whatever its program catches.
    command = [sys.executable, "-W", "error", "-m", "tests.support.doc_examples", name_of(page)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_RUN, check=False
    )
    assert done.returncode == 0, f"\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_the_page_resolve(page: Path) -> None:
    assert list(broken_links(page, ROOT)) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_page_speaks_of_names_that_exist(page: Path) -> None:
    spans = " ".join(SPAN.findall(page.read_text("utf-8")))
    unknown = [
        f"{module}.{name}"
        for module, name in DOTTED.findall(spans)
        if name not in (*KINDS_OF_ENTRIES, *NOT_PUBLIC) and not hasattr(MODULES[module], name)
    ]
    assert unknown == []


def test_every_public_name_is_documented() -> None:
    text = text_of(*PAGES)
    names = {name for module in PUBLIC for name in module.__all__}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


def test_the_list_of_files_is_made_from_their_docstrings() -> None:
    assert file_list.PAGE.read_text("utf-8") == file_list.page(), file_list.REWRITE


def test_every_file_says_what_it_is() -> None:
    silent = [path for path in file_list.SOURCE.rglob("*.py") if not file_list.summary(path)]
    assert silent == []


def test_the_architecture_names_no_file_that_is_not_there() -> None:
    real = {path.name for path in file_list.SOURCE.rglob("*.py")}
    named = {Path(path).name for path in FILE.findall(text_of(DOCS / "ARCHITECTURE.md"))}
    assert named - real == set()


def test_the_walks_name_real_functions() -> None:
    sources: dict[str, str] = {}
    for path in (ROOT / "src" / "perdure").rglob("*.py"):
        sources[path.name] = sources.get(path.name, "") + path.read_text("utf-8")
    walked = WALK.findall(text_of(DOCS / "walks.md"))
    assert len(walked) > 50
    assert [
        (file, name)
        for file, name in walked
        if not re.search(rf"(def|class) {name}\b", sources[file])
    ] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in PAGES[1:] if page.relative_to(DOCS).as_posix() not in navigation] == []


def test_a_decision_fits_on_a_page() -> None:
    decisions = sorted((DOCS / "adr").glob("*.md"))
    assert decisions
    assert [page for page in decisions if len(text_of(page).splitlines()) > LONGEST_DECISION] == []


# The finder itself

PLANTED = """\
# A page

```python
print("fine")
```

```output
fine
```

```python
x = 1
raise SystemExit("broken")
```

```python
print("one")
```

It prints:

```output
two
```

<!-- not run: it would never end -->
```python
while True: ...
```

<!-- not run -->
```python
while True: ...
```

```python
def test_it() -> None:
    assert 1 == 2
```

```python
print("what follows is no output of this")
```

Some words.

More words.

```output
of nothing
```

```sh
exit 1
```
"""


def test_what_is_wrong_with_an_example_is_found_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PLANTED, "utf-8")
    found = [failure.removeprefix(f"{page}:") for failure in failures(page)]
    assert [failure.splitlines()[0] for failure in found] == [
        "11: the example fails",
        "16: the example prints",
        "32: an example is left out only with a reason",
        "36: the example fails",
    ]
    assert f'File "{page}", line 13, in <module>' in found[0]
    assert "SystemExit: broken" in found[0]
    assert found[1].splitlines()[1:] == ["one", "instead of", "two"]
