"""A cache of answers: what a model said to a request is asked once."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from agents.llm.policy import Completion, Conversation, Policy, Sampling, digest

APPLICATION_ID = 0x1E1A05
"""Marks the file as ours, in the header of SQLite."""

VERSION = 1
"""Version of the table."""


class AnswersError(RuntimeError):
    """A file that is no cache of answers, or is damaged. It is not touched."""


class Answers:
    """Completions by request, in an SQLite file; `:memory:` keeps them in this process.

    The first answer to a request stands. Several processes may share a file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            self._open()
        except sqlite3.Error as error:
            raise AnswersError(f"{self.path} is no cache of answers: {error}") from error

    def get(self, key: str) -> tuple[Completion, ...] | None:
        """The answers under `key`, if there are any."""
        rows = self._execute("SELECT answers FROM answers WHERE key = ?", (key,))
        return tuple(Completion(**item) for item in json.loads(rows[0][0])) if rows else None

    def put(self, key: str, model: str, answers: Sequence[Completion]) -> None:
        """Keep answers, unless the key has some."""
        text = json.dumps([asdict(answer) for answer in answers])
        self._execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", (key, model, text, time.time()))

    def __len__(self) -> int:
        """How many requests are answered."""
        return int(self._execute("SELECT count(*) FROM answers")[0][0])

    def close(self) -> None:
        self._connection.close()

    def _execute(self, query: str, parameters: tuple[str | float, ...] = ()) -> list[tuple[str, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, parameters).fetchall()
            except sqlite3.Error as error:
                raise AnswersError(f"{self.path}: {error}") from error

    def _open(self) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        (mark,), (version,) = run("PRAGMA application_id").fetchone(), run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if (mark or tables) and (mark, version) != (APPLICATION_ID, VERSION):
            run("ROLLBACK")
            raise AnswersError(f"{self.path} is a database of another program, or of another version of this one")
        if not tables:
            run("CREATE TABLE answers (key TEXT PRIMARY KEY, model TEXT, answers TEXT, created REAL) WITHOUT ROWID")
            run(f"PRAGMA application_id = {APPLICATION_ID}")
            run(f"PRAGMA user_version = {VERSION}")
        run("COMMIT")


class Cached:
    """A policy that remembers: a repeatable request (greedy, or with a seed) that was answered isn't asked again."""

    def __init__(self, policy: Policy, answers: Answers) -> None:
        self.policy, self.answers = policy, answers

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        if not sampling.repeatable:
            return list(self.policy.act_batch(conversations, sampling))
        keys = [digest(self.name, conversation, sampling) for conversation in conversations]
        known = {key: self._remembered(key) for key in keys}
        missing = {key: talk for key, talk in zip(keys, conversations, strict=True) if known[key] is None}
        fresh = self.policy.act_batch(list(missing.values()), sampling) if missing else []
        for key, found in zip(missing, fresh, strict=True):
            known[key] = found
            if not any(answer.failure for answer in found):
                self.answers.put(key, self.name, found)
        return [known[key] or () for key in keys]

    def _remembered(self, key: str) -> tuple[Completion, ...] | None:
        found = self.answers.get(key)
        return found and tuple(replace(answer, cached=True, seconds=0.0) for answer in found)
