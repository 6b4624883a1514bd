import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.support import tidy_rules as rules
from tests.support.doc_links import broken_links
from tests.support.tidy_rules import Source

pytestmark = pytest.mark.once

Rule = Callable[[Source], Iterator[str]]

ROOT = Path(__file__).parent.parent
# Where git is absent, these folders hold nothing of ours.
NOT_OURS = re.compile(
    r"\.(?!ci|editorconfig|gitignore|github|pre-commit)|__pycache__|build|dist|site$"
)

PYTHON = r"(src|tests)/.*\.py"
LIBRARY = r"src/.*\.py"
ANY = r".*"
# Each rule with the pattern of the paths that it reads.
RULES: list[tuple[Rule, str]] = [
    (rules.functions_are_short, PYTHON),
    (rules.nothing_waits_for_real_time, PYTHON),
    (rules.imports_stand_at_the_top, PYTHON),
    (rules.nothing_prints, LIBRARY),
    (rules.module_has_a_docstring, LIBRARY),
    (rules.module_name_says_what_is_in_it, LIBRARY),
    (rules.nothing_is_left_unfinished, ANY),
    (rules.no_path_of_one_machine, ANY),
    (rules.no_host_of_a_registry, ANY),
]

# Joined here, so that this file keeps the rules that it plants violations of.
UNFINISHED = "TO" + "DO"
HOME = "/" + "home/kim/perdure"
WORK = "/" + "work/a.md"
REGISTRY = "pypi" + ".org"
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 51

PLANTED: list[tuple[Rule, str, str, int]] = [
    (rules.functions_are_short, "src/perdure/a.py", LONG_FUNCTION, 1),
    (rules.functions_are_short, "src/perdure/a.py", "x = 1\n\nasync " + LONG_FUNCTION, 3),
    (rules.nothing_waits_for_real_time, "tests/a.py", "import time\ntime.sleep(0)", 2),
    (rules.nothing_waits_for_real_time, "tests/a.py", "import time as t\n\nt.sleep(1)", 3),
    (rules.nothing_waits_for_real_time, "tests/a.py", "from time import monotonic as m\nm()", 2),
    (rules.nothing_waits_for_real_time, "tests/a.py", "import asyncio\nasyncio.sleep(0.1)", 2),
    (rules.nothing_waits_for_real_time, "tests/a.py", "from asyncio import sleep\nsleep(x)", 2),
    (rules.imports_stand_at_the_top, "src/perdure/a.py", "def f():\n    import perdure.base", 2),
    (rules.imports_stand_at_the_top, "tests/a.py", "def f():\n    from perdure import x", 2),
    (rules.imports_stand_at_the_top, "src/perdure/a.py", "def f():\n    from . import x", 2),
    (rules.nothing_prints, "src/perdure/a.py", "x = 1\nprint(x)", 2),
    (rules.module_has_a_docstring, "src/perdure/a.py", "x = 1", 1),
    (rules.module_name_says_what_is_in_it, "src/perdure/base/utils.py", "", 1),
    (rules.module_name_says_what_is_in_it, "src/perdure/core/mailbox.py", "", 1),
    (rules.nothing_is_left_unfinished, "README.md", f"fine\n{UNFINISHED}: later", 2),
    (rules.no_path_of_one_machine, "scripts/test", f"cd {HOME}", 1),
    (rules.no_path_of_one_machine, "README.md", f"see file://{HOME}", 1),
    (rules.no_host_of_a_registry, "pyproject.toml", f"x\nurl = 'https://{REGISTRY}/simple'", 2),
]

INNOCENT: list[tuple[Rule, str, str]] = [
    (rules.functions_are_short, "src/perdure/a.py", LONG_FUNCTION.replace("x = 1", "'doc'", 1)),
    (rules.nothing_waits_for_real_time, "tests/a.py", "import asyncio\nasyncio.sleep(0)"),
    (rules.nothing_waits_for_real_time, "tests/a.py", "from perdure import sleep\nsleep(5)"),
    (rules.nothing_waits_for_real_time, "src/perdure/base/clock.py", "import time\ntime.time()"),
    (rules.imports_stand_at_the_top, "tests/a.py", "import perdure\ndef f():\n    import json"),
    (rules.nothing_prints, "src/perdure/a.py", "pprint(1)\nself.print(1)"),
    (rules.nothing_is_left_unfinished, "README.md", "a list of todos"),
    (rules.no_path_of_one_machine, "README.md", f"https://example.com/home/page, docs{WORK}"),
]


def our_files() -> list[Path]:
    """Lists the files that git tracks or would track; without git, all that look like ours."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(path for path in walk(ROOT) if path.is_file())
    return sorted(
        path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()
    )


def walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if NOT_OURS.match(path.name):
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return [source for path in our_files() if (source := read(path))]


def read(path: Path) -> Source | None:
    """Reads a text file; None for any other."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return None
    return Source(PurePosixPath(path.relative_to(ROOT).as_posix()), text)


@pytest.mark.timeout(300)  # the first of them parses every file, which takes long on a busy machine
@pytest.mark.parametrize(("rule", "paths"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_code_base_keeps_the_rule(rule: Rule, paths: str, sources: list[Source]) -> None:
    chosen = [source for source in sources if re.fullmatch(paths, str(source.path))]
    assert chosen, f"no file matches {paths}: the rule checks nothing"
    broken = [violation for source in chosen for violation in rule(source)]
    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize(("rule", "path", "text", "line"), PLANTED)
def test_a_planted_violation_is_found_at_its_line(
    rule: Rule, path: str, text: str, line: int
) -> None:
    [violation] = rule(Source(PurePosixPath(path), text))
    assert violation.startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(("rule", "path", "text"), INNOCENT)
def test_innocent_text_passes(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(PurePosixPath(path), text))) == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _ in RULES} == {rule for rule, *_ in PLANTED}


def test_the_links_of_the_pages_resolve() -> None:
    pages = [path for path in our_files() if path.suffix == ".md"]
    broken = [link for page in pages for link in broken_links(page, ROOT)]
    assert not broken, "\n".join(["", *broken])


def test_a_broken_link_is_found_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text('# Two *words*, here\n\n<a id="spot"></a>\n')
    page = tmp_path / "a.md"
    page.write_text(
        "[ok](b.md) [ok](b.md#two-words-here) [ok](b.md#spot) [ok](https://example.com/x)\n"
        "`[code](none.md)`\n\n```\n[code](none.md)\n```\n"
        "[gone](none.md)\n![gone](none.png) [no heading](b.md#three)\n\n[r]: none.md\n"
    )
    assert list(broken_links(page, tmp_path)) == [
        "a.md:7: `none.md` leads nowhere",
        "a.md:8: `none.png` leads nowhere",
        "a.md:8: `b.md#three` leads nowhere",
        "a.md:10: `none.md` leads nowhere",
    ]


def test_without_git_the_same_kind_of_files_is_found() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in walk(ROOT)}
    assert {"pyproject.toml", "scripts/setup", ".ci/run", "tests/test_tidy.py"} <= found
    assert not any(name.startswith((".venv", ".git/")) for name in found)
