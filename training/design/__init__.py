"""The design of optimisers by evolution: programs are proposed, run in a sandbox, raced, and kept in an archive."""
