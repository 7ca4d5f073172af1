"""Learning while serving: verifications teach an exit head, in a thread of its own (docs/learning.md)."""
