"""The store keeps whole facts, tells keys apart, and survives its processes."""

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from envs.common import timing
from envs.common.evaluation import Check, Evaluation, Status
from envs.common.store import Key, Store, StoreError

KEY = Key(
    task="t",
    program="p",
    baseline="b",
    exactness="EXACT",
    target="llvm",
    device="cpu",
    toolchain="tvm 1",
    protocol="1",
    threads=1,
    semantics="1",
)
OK = Evaluation(
    "p",
    Status.OK,
    checks=(Check("normal/C", 0.25, 0.125, True),),
    timing=timing.summarise([1e-3, 1.1e-3, 0.9e-3], [2e-3, 2.1e-3, 1.9e-3], "default schedule"),
    root_ratio=3.0,
    seconds={"build": 0.04},
    environment={"device": "cpu"},
    audited=True,
)
WRONG = Evaluation("p", Status.WRONG, "C differs", (Check("normal/C", float("inf"), float("inf"), False),))


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    store = Store(tmp_path / "folder" / "store.sqlite" if request.param == "file" else ":memory:")
    yield store
    store.close()


@pytest.mark.parametrize("evaluation", [OK, WRONG])
def test_an_evaluation_comes_back_whole(store, evaluation):
    assert store.get(KEY) is None
    assert store.put(KEY, evaluation) == evaluation
    assert store.get(KEY) == evaluation
    assert len(store) == 1
    assert list(store.rows()) == [(KEY, evaluation)]


def test_the_first_record_of_a_key_stands(store):
    store.put(KEY, OK)
    assert store.put(KEY, WRONG) == OK
    assert store.get(KEY) == OK
    assert len(store) == 1


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Key)])
def test_a_change_of_any_field_of_the_key_misses(store, name):
    store.put(KEY, OK)
    other = dataclasses.replace(KEY, **{name: 2 if name == "threads" else "another"})
    assert store.get(other) is None
    store.put(other, WRONG)
    assert store.get(KEY) == OK
    assert store.get(other) == WRONG


def test_kinds_of_facts_do_not_mix(store):
    store.put_fact("root", KEY, {"ratio": 2.5})
    assert store.get(KEY) is None
    assert len(store) == 0
    assert store.fact("root", KEY) == {"ratio": 2.5}


def test_gc_drops_what_other_versions_wrote(store):
    store.put(KEY, OK)
    store.put(dataclasses.replace(KEY, semantics="0"), OK)
    store.put(dataclasses.replace(KEY, protocol="0"), OK)
    assert store.gc(protocol="1", semantics="1") == 2
    assert list(store.rows()) == [(KEY, OK)]


def test_a_file_keeps_its_facts(tmp_path):
    path = tmp_path / "store.sqlite"
    first = Store(path)
    first.put(KEY, OK)
    first.close()
    assert Store(path).get(KEY) == OK


def test_two_stores_see_each_other(tmp_path):
    first, second = Store(tmp_path / "s"), Store(tmp_path / "s")
    first.put(KEY, OK)
    assert second.get(KEY) == OK
    assert second.put(KEY, WRONG) == OK


@pytest.mark.parametrize(
    "content", [b"This is a text file of somebody else.\n" * 50, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_file_that_is_not_a_store_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        Store(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE facts (a)")
    other.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program"):
        Store(path)
    assert path.read_bytes() == content


def test_a_store_of_another_version_is_named(tmp_path):
    path = tmp_path / "s"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="version 99"):
        Store(path)


def test_a_damaged_store_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "s"
    store = Store(path)
    for n in range(50):
        store.put(dataclasses.replace(KEY, program=str(n)), OK)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xaa" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="/s"):
        list(Store(path).rows())


def test_a_forked_process_opens_its_own_connection(tmp_path):
    store = Store(tmp_path / "s")
    store.put(KEY, OK)
    other = dataclasses.replace(KEY, program="q")
    child = os.fork()
    if child == 0:
        store.put(other, WRONG)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(other) == WRONG
    store.put(dataclasses.replace(KEY, program="r"), OK)
    assert len(store) == 3


WRITER = f"""
import dataclasses, sys
sys.path[:] = {sys.path!r}
from envs.common.store import Store
from {__name__} import KEY, OK
store = Store(sys.argv[1])
for n in range(100_000):
    store.put(dataclasses.replace(KEY, program=sys.argv[2] + str(n)), OK)
    print(n, flush=True)
"""


def writer(path, name):
    return subprocess.Popen([sys.executable, "-c", WRITER, path, name], stdout=subprocess.PIPE, text=True)


def test_nothing_reported_is_lost_when_writers_are_killed_at_any_moment(tmp_path):
    path = tmp_path / "s"
    writers = [writer(str(path), name) for name in ("a", "b", "c")]
    for process in writers:
        process.stdout.readline()
    time.sleep(0.2)
    reported = {}
    for name, process in zip("abc", writers, strict=True):
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].split()
        reported[name] = int(lines[-1]) if lines else 0
    store = Store(path)
    for name, last in reported.items():
        for n in range(last + 1):
            assert store.get(dataclasses.replace(KEY, program=f"{name}{n}")) == OK
    assert all(evaluation == OK for _, evaluation in store.rows())
    store.put(KEY, OK)


def test_many_processes_may_create_a_store_at_once(tmp_path):
    writers = [writer(str(tmp_path / "s"), str(n)) for n in range(4)]
    try:
        assert all(process.stdout.readline() == "0\n" for process in writers)
    finally:
        for process in writers:
            process.kill()
            process.communicate()
