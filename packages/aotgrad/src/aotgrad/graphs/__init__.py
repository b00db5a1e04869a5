"""Functional graphs: passes, partition, rematerialisation, splitting, checks and printing."""
