"""Every mistake is told with file, line and entry, and what to write; all of them at once."""

from pathlib import Path

import pytest

from perdure.entries import load_entries, load_yaml
from perdure.entries.model import HostSize
from perdure.errors import EntriesError
from tests.support.entries import index, write

WORKER = "- {name: w, kind: process.py, source: file://w.py}\n"
HOST = "- {name: h, kind: process.host}\n"


def told(folder: Path) -> list[str]:
    """Give the mistakes, without the path of the only file."""
    with pytest.raises(EntriesError) as caught:
        load_yaml(folder)
    prefix = f"{folder / '_index.yaml'}:"
    return [str(mistake).removeprefix(prefix) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", ["1: not a mapping: write version, namespace and entries"]),
        (
            "entries: []\n",
            [
                "1: the namespace is missing: write words with dots, such as app.workers",
                '1: the version is missing: write version: "1.0"',
            ],
        ),
        (
            'version: "2"\nnamespace: "a b"\nentrys: 1\n',
            [
                "1: the entries are missing: write a list of them, a dash before each",
                "1: the version is '2': write version: \"1.0\"",
                "2: the namespace is 'a b': write words with dots, such as app.workers",
                "3: unknown key 'entrys': did you mean entries?",
            ],
        ),
        (
            "version: 1\nnamespace: 앱.나라\nentries:\n  processes:\n    kind: process.host\n",
            [
                '1: the version is 1: write version: "1.0"',
                "3: the entries are not a list: write a list of them, a dash before each",
            ],
        ),
    ],
)
def test_mistakes_around_the_entries(text: str, expected: list[str], tmp_path: Path) -> None:
    assert told(write(tmp_path, {"_index.yaml": text})) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("- 7\n", "4: it is 7: write a mapping"),
        ("- {kind: process.host}\n", "4: 'name' is missing: write a name"),
        ("- {name: '', kind: process.host}\n", "4: name is '': write a name"),
        ("- {name: no, kind: process.host}\n", "4: name is false: write a name, in quotes if YAML"),
        ("- {name: 2024-01-02, kind: process.host}\n", "4: name is 2024-01-02: write a name, in"),
        (
            "- {name: a}\n",
            "4: entry app:a: 'kind' is missing: write process.host, process.py or process.service",
        ),
        (
            "- {name: 'a:b', kind: process.host}\n",
            "4: entry app:a:b: the name is 'a:b': write letters, digits and _ . -, a letter first",
        ),
        (
            "- {name: 1st, kind: process.host}\n",
            "4: entry app:1st: the name is '1st': write letters, digits and _ . -, a letter first",
        ),
        (
            "- {name: a, kind: process.lua, source: file://a.lua}\n",
            "4: entry app:a: unknown kind 'process.lua': did you mean process.py or process.host",
        ),
        (
            "- name: a\n  kind: http.server\n",
            (
                "5: entry app:a: unknown kind 'http.server': "
                "write one of process.host, process.py, process.service"
            ),
        ),
        (
            "- name: a\n  kind: process.host\n  hosts: {workers: 4}\n",
            "6: entry app:a: unknown key 'hosts': did you mean host?",
        ),
        (
            "- name: a\n  kind: process.host\n  host:\n    workers: many\n",
            "7: entry app:a: host.workers is 'many': write a whole number, 1 or more",
        ),
        (
            "- name: a\n  kind: process.host\n  host:\n    workers: 0\n",
            "7: entry app:a: host.workers is 0: write a whole number, 1 or more",
        ),
        (
            "- name: a\n  kind: process.host\n  host: {kind: fibres}\n",
            "6: entry app:a: host.kind is 'fibres': write one of inline, threads, os",
        ),
        (
            "- name: a\n  kind: process.host\n  host: 4\n",
            "6: entry app:a: host is 4: write a mapping",
        ),
        (
            "- name: a\n  kind: process.host\n  lifecycle:\n    auto_start: perhaps\n",
            "7: entry app:a: lifecycle.auto_start is 'perhaps': write true or false",
        ),
        (
            (
                "- name: a\n  kind: process.host\n  lifecycle:\n    stop_timeout: 10\n"
                "    start_timeout: ten seconds\n"
            ),
            (
                "8: entry app:a: lifecycle.start_timeout is 'ten seconds': "
                'write a duration such as "500ms" or "1m30s"'
            ),
        ),
        (
            "- name: a\n  kind: process.host\n  lifecycle: {depends_on: h}\n",
            "6: entry app:a: lifecycle.depends_on is 'h': write a list of ids of entries",
        ),
        (
            "- name: a\n  kind: process.host\n  lifecycle:\n    restart:\n      jitter: 2\n",
            "8: entry app:a: lifecycle.restart.jitter is 2: write a number from 0 to 1",
        ),
        (
            "- name: a\n  kind: process.host\n  lifecycle:\n    restart:\n      backof: 2\n",
            "8: entry app:a: unknown key 'lifecycle.restart.backof': did you mean backoff_factor?",
        ),
        (
            HOST + HOST,
            "5: entry app:h: the same id is used at FOLDER/_index.yaml:4: rename one of them",
        ),
    ],
)
def test_mistakes_in_an_entry(entries: str, expected: str, tmp_path: Path) -> None:
    write(tmp_path, {"_index.yaml": index(entries)})

    [mistake] = told(tmp_path)

    assert mistake.startswith(expected.replace("FOLDER", str(tmp_path)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", "4: entry app:a: source is missing: write source: file://x.py or source: module:"),
        ("source: w.py", "6: entry app:a: source is 'w.py': write source: file://x.py or source:"),
        ("source: [w.py]", "6: entry app:a: source is ['w.py']: write source: file://x.py"),
        ("source: file://gone.py", "6: entry app:a: there is no file FOLDER/gone.py"),
        (
            "source: file://w.lua",
            "6: entry app:a: w.lua is not a Python file: write one that ends in",
        ),
        (
            "source: module:a-b",
            "6: entry app:a: 'a-b' is not the name of a module: write one such as",
        ),
        ("source: file://w.py\n  module: w", "7: entry app:a: source and module: leave one out"),
        ("source: file://w.py\n  method: 3", "7: entry app:a: method is 3: write text"),
        (
            "source: file://w.py\n  input: 3",
            "7: entry app:a: input is 3: write a list of arguments",
        ),
        (
            "source: file://w.py\n  input: [1]\n  defaults: {input: [2]}",
            "7: entry app:a: input and defaults.input say the same: leave one out",
        ),
        (
            "source: file://w.py\n  host: hh",
            "7: entry app:a: there is no entry app:hh: did you mean app:h?",
        ),
        (
            "source: file://w.py\n  host: a",
            "7: entry app:a: app:a is not a process.host: name one",
        ),
    ],
)
def test_mistakes_in_a_process(fields: str, expected: str, tmp_path: Path) -> None:
    text = index(f"- name: a\n  kind: process.py\n  {fields}".rstrip() + "\n" + HOST)
    write(tmp_path, {"_index.yaml": text, "w.py": "async def main(): ..."})

    [mistake] = told(tmp_path)

    assert mistake.startswith(expected.replace("FOLDER", str(tmp_path)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("{}", "6: entry app:s: 'process' is missing: write the id of an entry: namespace:name"),
        ("{process: x}", "6: entry app:s: there is no entry app:x: did you mean app:w?"),
        ("{process: other:w}", "6: entry app:s: there is no entry other:w: write one of app:w"),
        ("{process: h}", "6: entry app:s: app:h is not a process.py: name one"),
        ("{process: w, host: x}", "6: entry app:s: there is no entry app:x: did you mean app:h?"),
        ("{process: w, host: w}", "6: entry app:s: app:w is not a process.host: name one"),
        (
            "{process: w, lifecycle: {depends_on: [h, nobody]}}",
            "6: entry app:s: there is no entry app:nobody: write one of app:h, app:s",
        ),
        (
            "{process: w, lifecycle: {requires: [w]}}",
            "6: entry app:s: app:w is not a host or a service, or a process.py with auto_start",
        ),
        (
            "{process: w, lifecycle: {depends_on: [s]}}",
            "6: entry app:s: dependency cycle: app:s → app:s: remove one depends_on",
        ),
        (
            "{process: w, lifecycle: {restart: {initial_delay: 2s, max_delay: 1s}}}",
            "6: entry app:s: max_delay is shorter than initial_delay: write a longer one",
        ),
    ],
)
def test_mistakes_in_a_service(fields: str, expected: str, tmp_path: Path) -> None:
    service = "- {name: s, kind: process.service, " + fields.removeprefix("{") + "\n"
    text = index(WORKER + HOST + service.replace(", }", "}"))
    write(tmp_path, {"_index.yaml": text, "w.py": "async def main(): ..."})

    [mistake] = told(tmp_path)

    assert mistake.startswith(expected)


def test_with_several_hosts_a_service_must_say_where_it_runs(tmp_path: Path) -> None:
    entries = """
        - {name: h1, kind: process.host}
        - {name: h2, kind: process.host}
        - {name: w, kind: process.py, source: file://w.py, lifecycle: {auto_start: true}}
        """
    write(tmp_path, {"_index.yaml": index(entries), "w.py": "async def main(): ..."})

    assert told(tmp_path) == [
        "6: entry app:w: it does not say where it runs: write host: app:h1 or app:h2"
    ]


def test_services_that_wait_for_each_other_are_told_as_a_ring(tmp_path: Path) -> None:
    entries = WORKER + "".join(
        f"- {{name: {one}, kind: process.service, process: w, lifecycle: {{requires: [{two}]}}}}\n"
        for one, two in ("ab", "bc", "ca", "da", "ef", "fe")
    )
    write(tmp_path, {"_index.yaml": index(entries), "w.py": "async def main(): ..."})

    assert told(tmp_path) == [
        ("5: entry app:a: dependency cycle: app:a → app:b → app:c → app:a: remove one depends_on"),
        "9: entry app:e: dependency cycle: app:e → app:f → app:e: remove one depends_on",
    ]


def test_all_mistakes_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "_index.yaml": index("- {name: h, kind: process.host, host: {workers: 0}, x: 1}"),
            "a/_index.yaml": index("- {name: w, kind: process.py, source: file://w.py}", "app.a"),
            "a/b/_index.yaml": "entries: [",
            "c/_index.yaml": index("- {name: s, kind: process.service, process: a:w}", "app.c"),
        },
    )

    with pytest.raises(EntriesError) as caught:
        load_yaml(tmp_path)

    assert str(caught.value).splitlines() == [
        "5 mistakes in the entries:",
        (
            f"  {tmp_path}/_index.yaml:4: entry app:h: host.workers is 0: "
            "write a whole number, 1 or more"
        ),
        (
            f"  {tmp_path}/_index.yaml:4: entry app:h: unknown key 'x': "
            "write one of name, kind, host, lifecycle, meta"
        ),
        f"  {tmp_path}/a/_index.yaml:4: entry app.a:w: there is no file {tmp_path}/a/w.py",
        (
            f"  {tmp_path}/a/b/_index.yaml:1: not valid YAML: "
            "a value is missing, or a bracket is not closed"
        ),
        (
            f"  {tmp_path}/c/_index.yaml:4: entry app.c:s: there is no entry a:w: "
            "did you mean app.a:w?"
        ),
    ]


def test_what_is_no_plain_yaml_does_not_hide_another_mistake(tmp_path: Path) -> None:
    entries = """
        - name: !!python/name:os.system h
          kind: process.host
          kind: process.host
          host: {workers: !!int x, kind: fibres}
        """

    found = told(write(tmp_path, {"_index.yaml": index(entries)}))

    assert [mistake.partition(":")[0] for mistake in found] == ["4", "6", "7", "7", "7"]


def test_names_may_be_of_any_language(tmp_path: Path) -> None:
    text = index("- {name: 일꾼, kind: process.host}", "앱.나라")

    assert list(load_yaml(write(tmp_path, {"_index.yaml": text})).hosts) == ["앱.나라:일꾼"]


def test_several_files_may_have_one_namespace(tmp_path: Path) -> None:
    write(tmp_path, {"_index.yaml": index(HOST), "a/_index.yaml": index(HOST.replace("h,", "i,"))})

    assert list(load_yaml(tmp_path).hosts) == ["app:h", "app:i"]


def test_a_mistake_in_an_entry_does_not_hide_another_one_in_it(tmp_path: Path) -> None:
    entries = """
        - name: s
          kind: process.service
          process: nobody
          lifecycle:
            stop_timeout: 5 sec
            depends_on: [nothing]
            restart:
              max_attempts: x
        """

    found = told(write(tmp_path, {"_index.yaml": index(entries)}))

    assert [mistake.partition(" such")[0].partition(";")[0] for mistake in found] == [
        "6: entry app:s: there is no entry app:nobody",
        "8: entry app:s: lifecycle.stop_timeout is '5 sec': write a duration",
        "9: entry app:s: there is no entry app:nothing: write one of app:s",
        "11: entry app:s: lifecycle.restart.max_attempts is 'x': write a whole number",
    ]


def test_a_reference_to_an_entry_with_mistakes_is_no_mistake_itself(tmp_path: Path) -> None:
    entries = "- {name: w, kind: process.py}\n- {name: s, kind: process.service, process: w}\n"

    [mistake] = told(write(tmp_path, {"_index.yaml": index(entries)}))

    assert mistake.startswith("4: entry app:w: source is missing")


def test_an_empty_value_is_the_same_as_no_key(tmp_path: Path) -> None:
    entries = "- name: h\n  kind: process.host\n  host:\n    workers:\n  lifecycle:\n"
    loaded = load_yaml(write(tmp_path, {"_index.yaml": index(entries)}))

    assert loaded.plan.hosts["app:h"].size == HostSize()


def test_a_folder_without_entries_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(EntriesError, match=r"there is no _index\.yaml in this folder or below it"):
        load_yaml(tmp_path)


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    write(tmp_path, {"_index.yaml": index(HOST), ".venv/_index.yaml": "["})

    assert list(load_yaml(tmp_path).hosts) == ["app:h"]


def test_a_mapping_has_no_lines_but_names_its_entries() -> None:
    with pytest.raises(EntriesError) as caught:
        load_entries({"version": "1.0", "namespace": "app", "entries": [{"name": "a", "kind": 3}]})

    assert [str(mistake) for mistake in caught.value.mistakes] == [
        (
            "<mapping>: entry app:a: unknown kind 3: "
            "write one of process.host, process.py, process.service"
        )
    ]
