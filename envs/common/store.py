"""A file of facts: what was measured, under which circumstances, once and for good.

A fact is never changed; the first record of a key stands, so that a reward is stable within a study. Keys
name everything a measurement depends on. Records are written whole, in one transaction, to SQLite with a
write-ahead log: a process killed at any moment loses at most the record it was writing, and several processes
may share a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envs.common.evaluation import Evaluation

APPLICATION_ID = 0x1E126F
"""Marks the file as ours, in the header of SQLite."""

VERSION = 1
"""Version of the tables."""

_TABLE = """CREATE TABLE facts (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    fields TEXT NOT NULL,
    value TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID"""


class StoreError(RuntimeError):
    """A file that is not a store, or is damaged. It is never touched."""


@dataclass(frozen=True, slots=True)
class Key:
    """Everything that the result of a measurement depends on."""

    task: str
    """Key of the root program."""
    program: str
    """Key of the program measured."""
    baseline: str
    """Key of the program it is compared with."""
    exactness: str
    """What its trace may have done to floating-point results."""
    target: str
    device: str
    toolchain: str
    """Compiler and library versions."""
    protocol: str
    """Version of the measurement protocol, and its parameters."""
    threads: int
    semantics: str
    """Version of the meaning of programs: of strategies, lowering and interpreter."""

    def digest(self) -> str:
        return hashlib.sha256(_fields(self).encode()).hexdigest()


class Store:
    """Evaluations, and facts about whole tasks, by key. `:memory:` keeps them in this process.

    Raises `StoreError` for a file that is not a store.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._owner = 0
        self._connection: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._connect()

    def get(self, key: Key) -> Evaluation | None:
        """The evaluation under `key`, if there is one."""
        value = self.fact("evaluation", key)
        return None if value is None else Evaluation.from_json(value)

    def put(self, key: Key, evaluation: Evaluation) -> Evaluation:
        """Keep `evaluation` unless the key has one already; return the one that stands."""
        return Evaluation.from_json(self.put_fact("evaluation", key, evaluation.to_json()))

    def fact(self, kind: str, key: Key) -> Any:
        """The JSON value of a fact of this kind, or None."""
        rows = self._execute("SELECT value FROM facts WHERE kind = ? AND key = ?", (kind, key.digest()))
        return json.loads(rows[0][0]) if rows else None

    def put_fact(self, kind: str, key: Key, value: Any) -> Any:
        """Keep a JSON value unless the key has one of this kind already; return the one that stands."""
        self._execute(
            "INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?, ?)",
            (kind, key.digest(), _fields(key), json.dumps(value), time.time()),
        )
        return self.fact(kind, key)

    def __len__(self) -> int:
        """How many evaluations there are."""
        return int(self._execute("SELECT count(*) FROM facts WHERE kind = 'evaluation'")[0][0])

    def rows(self) -> Iterator[tuple[Key, Evaluation]]:
        """Yield every evaluation with its key, oldest first."""
        query = "SELECT fields, value FROM facts WHERE kind = 'evaluation' ORDER BY created, key"
        for fields, value in self._execute(query):
            yield Key(**json.loads(fields)), Evaluation.from_json(json.loads(value))

    def gc(self, *, protocol: str, semantics: str) -> int:
        """Drop facts of other protocols and semantics, which nothing asks for any more; return how many."""
        with self._lock:
            before = self._execute("SELECT count(*) FROM facts")[0][0]
            self._execute(
                "DELETE FROM facts WHERE json_extract(fields, '$.protocol') != ?"
                " OR json_extract(fields, '$.semantics') != ?",
                (protocol, semantics),
            )
            return int(before - self._execute("SELECT count(*) FROM facts")[0][0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _execute(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._connect().execute(query, parameters).fetchall()
            except sqlite3.DatabaseError as error:
                raise StoreError(f"{self.path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        """The connection of this process: one that was opened before a fork must not be used after it."""
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        self._inherited = self._connection  # closing it here would disturb the process it belongs to
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            # Autocommit: each statement is a transaction.
            connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            _open(connection, self.path)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} is not a store of measurements: {error}") from error
        self._connection, self._owner = connection, os.getpid()
        return connection


def _open(connection: sqlite3.Connection, path: str) -> None:
    """Check that the file is a store, or make an empty one into a store."""
    connection.execute("BEGIN")
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("COMMIT")
    if mark != APPLICATION_ID and (mark or tables):
        raise StoreError(f"{path} is a database of another program")
    connection.execute("PRAGMA synchronous = NORMAL")
    if not tables:
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise StoreError(f"{path} has tables of version {version}; this program reads version {VERSION}")


def _fields(key: Key) -> str:
    return json.dumps(asdict(key), sort_keys=True)
