"""The frame hook: which code it sees, and the state of the process."""
