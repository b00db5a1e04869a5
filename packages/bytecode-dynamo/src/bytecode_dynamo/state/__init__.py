"""The state of one capture, and the protocol of trackers."""
